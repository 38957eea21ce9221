"""The study of stopping rules: its functions are as stated, and stops are counted rightly."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from benchmarks.studies import stopping as study


@pytest.mark.parametrize("name", study.FUNCTIONS)
def test_ranges_are_about_one(name: str) -> None:
    f, dim = study.FUNCTIONS[name]
    generator = torch.Generator().manual_seed(0)
    values = f(torch.rand(20_000, dim, dtype=torch.double, generator=generator))
    assert 0.9 < float(values.max() - values.min()) < 1.1


def test_noise_of_the_situations() -> None:
    """The standard deviation is 0.05, or rises along the first input."""
    torch.manual_seed(0)
    X = torch.full((20_000, 1), 0.5, dtype=torch.double)
    clean = study.waves(X).unsqueeze(-1)
    for situation, sd in (("right", 0.05), ("varies", 0.08)):
        residuals = study.observed("waves", situation, X) - clean
        # The relative standard error of the estimate is 1 / sqrt(2 n) = 0.005.
        assert float(residuals.std()) == pytest.approx(sd, rel=0.02)


def test_a_rule_stops_where_its_bound_first_reaches_eps() -> None:
    """Of two runs the plain rule stops one at 16, rightly for 0.1 and wrongly for 0.05."""
    never = [(count, math.inf, 0.0) for count in study.CHECKS]
    checks: dict[str, Any] = {rule: never for rule in study.RULES}
    stopping = [(10, 0.11, 0.0), (16, 0.04, 0.08), (22, 0.01, 0.0)]
    runs = [
        {"seed": 0, "situation": "right", "name": name, "checks": {**checks, "plain": plain}}
        for name, plain in (("waves", stopping), ("branin", never))
    ]
    lines = study.markdown(runs).splitlines()
    # Of one trial Clopper and Pearson's interval ends at 0.025 and 0.975.
    assert "| 0.1 | right | plain | 1 of 2 | 1 of 1 | 0.03 to 1.00 | 16 |" in lines
    assert "| 0.05 | right | plain | 1 of 2 | 0 of 1 | 0.00 to 0.97 | 16 |" in lines
    assert "| 0.1 | right | Ax | 0 of 2 | – | – | – |" in lines
    assert "1 of 10 seeds" in lines[2]
