"""The study of values that never arrive: its rules are as stated, and its table."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from botorch.acquisition.objective import ScalarizedPosteriorTransform

from benchmarks.delay import objectives
from benchmarks.delay.methods import sdf
from benchmarks.delay.replicate import DelayedReplicate, DelayedTask
from benchmarks.studies import never_arriving as study
from botorch_calib.test_functions.delayed import PoissonDelay


def replicate(cell: tuple[str, int]) -> Any:
    """The ledger as it is after 60 queries along the interval."""
    task = DelayedTask("gp_sample", objectives.gp_sample(), PoissonDelay(10.0), cell[1])
    made = DelayedReplicate(task, study.CELLS[cell], 1000)
    choices = made.domain.choices
    assert choices is not None
    for step in range(60):
        made.prepare(step)
        made._query(choices[16 * step], made._delay(choices[0], step))
    made.prepare(60)
    return made


def test_queries_that_a_model_holds() -> None:
    held = {}
    for name in ("GP-UCB-SDF", "GP-UCB-SDF, expired queries left out"):
        made = replicate((name, 5))
        model: Any = made.fit(60)
        held[name] = len(model.X_pending)
        pending, incomplete = len(made.ledger.pending()), len(made.ledger.incomplete())
    assert 0 < pending < incomplete
    assert list(held.values()) == [incomplete, pending]


def test_acquisition_functions() -> None:
    made: Any = replicate(("expected improvement, rescaled", 5))
    acqf = made.strategy.acquisition_function(made.fit(60), made.ledger, made.choices)
    rho = made.ledger.arrival_probability().estimate
    assert rho > 0
    transform = acqf.posterior_transform
    assert isinstance(transform, ScalarizedPosteriorTransform)
    assert float(transform.get_buffer("weights")) == pytest.approx(1 / rho)
    assert transform.offset == 0.0
    made = replicate(("GP-BUCB, proven multiplier", 20))
    acqf = made.strategy.acquisition_function(made.fit(60), made.ledger, made.choices)
    assert acqf.beta > study.NORM**2 and acqf.nu.item() == pytest.approx(acqf.beta**0.5)


def test_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, other = study.FIRST, ("other", 20)
    monkeypatch.setattr(study, "CELLS", {first: sdf("a", "ucb"), other: sdf("b", "ucb")})
    monkeypatch.setattr(study, "archived", lambda seeds: {})
    outcomes = {
        (first, 1000): study.Outcome(0.2, (0.5, 0.6, 0.3, 0.1), 0.05, True),
        (first, 1001): study.Outcome(0.4, (0.7, math.nan, math.nan, 0.1), 0.0, False),
        (other, 1000): study.Outcome(0.1),
        (other, 1001): study.Outcome(0.2),
    }
    monkeypatch.setattr(study, "run", lambda cell, seed: outcomes[cell, seed])
    monkeypatch.setattr(
        study, "mean_and_half_width", lambda values, digits: f"{sum(values) / len(values):.2f}"
    )
    assert study.main(["--seeds", "1000:1002", "--tables", str(tmp_path)]) == 0
    text = (tmp_path / "never_arriving.md").read_text()
    assert "| other | 20 | 0.15 | 0.50 (0.50 to 0.50) |" in text
    assert "| rescaled | 0.60 |" in text and "(1 seeds on which one did)" in text
    assert "estimate of rho is 0.03; the true one, 0.067, lies" in text and "in 1 of 2" in text
