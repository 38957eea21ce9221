"""The study of a region that hangs: its functions are as stated, and a run is counted rightly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.studies import hanging_region as study
from botorch_calib.asynchronous.delay_strategy import STRATEGIES


@pytest.mark.parametrize("name", study.PROBLEMS)
def test_the_best_value_is_in_the_region_that_hangs(name: str) -> None:
    problem = study.PROBLEMS[name]
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(20_000, problem.dim, dtype=torch.double, generator=generator)
    inside = torch.tensor([problem.value(x) for x in points if problem.outside(x) < 0.0])
    outside = torch.tensor([problem.value(x) for x in points if problem.outside(x) >= 0.0])
    assert inside.max() > problem.best + 0.1
    # In three dimensions the best point outside is at an edge, where few of the points are.
    assert problem.best - 0.03 < outside.max() < problem.best + 1e-3
    assert outside.min() >= study.LEAST[name]


def test_time_lost_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queries 0 and 1 hang beside each other, and the last one after all the others."""

    class Listed:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            pass

        def __call__(self, ledger: Any) -> Tensor:
            return torch.tensor([1.0 if len(ledger) in (0, 1, study.QUERIES - 1) else 0.3])

    monkeypatch.setattr(study, "DelayAwareProposer", Listed)
    problem = study.Problem(1, float, lambda x: 0.5 - float(x), best=0.4)
    outcome = study.run(problem, 0.0, STRATEGIES["ucb"], study.SearchSettings())
    assert outcome.timeouts == 3
    assert outcome.gap == pytest.approx(0.1)
    # 38 evaluations, 37 of length 0.7 to 1.3 by two workers, and then one time-out.
    assert 37 / 2 * 0.7 - 10 < study.TIMEOUT * (outcome.time_lost - 1) < 37 / 2 * 1.3 + 1.3 - 10


def test_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "PROBLEMS", {"disc": study.PROBLEMS["disc"]})
    monkeypatch.setattr(study, "METHODS", {"one": STRATEGIES["ucb"]})
    found = iter([study.Outcome(2, 1.0, 0.0), study.Outcome(4, 1.0, 0.2)])
    monkeypatch.setattr(study, "run", lambda *args: next(found))
    assert study.main(["--seeds", "1000:1002", "--tables", str(tmp_path)]) == 0
    text = (tmp_path / "hanging_region.md").read_text()
    # Student's quantile for one degree of freedom is 12.7062, and the standard errors 1 and 0.1.
    assert text.splitlines()[-1] == "| one | disc | 3.0 ± 12.7 | 1.0 ± 0.0 | 0.100 ± 1.271 |"
