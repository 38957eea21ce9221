"""Claims of final models against other computations, and the scores of runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.calibration import claims
from benchmarks.calibration.claims import (
    ARCHIVED,
    CLAIM,
    EXCESS,
    Claims,
    Share,
    outcome_coverage,
    superiority,
)
from benchmarks.calibration.log_regret import LogRegret
from benchmarks.calibration.remedies import compared
from benchmarks.calibration.understated import understated
from benchmarks.framework.replicate_result import Score
from benchmarks.framework.runner import without_expected_warnings
from benchmarks.framework.stored_results import Entry
from botorch_calib import CalibratedModel, OnlineConformal
from tests.benchmarks.calibration.runs import run
from tests.long_grids import mostly_slow

PROBLEM = replace(understated("branin"), num_evaluations=2)
BOUNDS = PROBLEM.bounds_tensor()
METHODS = {method.name: method for method in compared()}


def data(n: int) -> tuple[Tensor, Tensor]:
    with manual_seed(n):
        X = BOUNDS[0] + (BOUNDS[1] - BOUNDS[0]) * torch.rand(n, 2, dtype=torch.double)
        return X, PROBLEM.build(0).observe(X)


def test_superiority_of_a_gaussian_process_is_a_normal_probability() -> None:
    X, Y = data(15)
    gp = PROBLEM.surrogate(X, Y, BOUNDS, 0, None)
    with torch.no_grad():
        posterior: Any = gp.posterior(X)
        mean, K = posterior.mean.squeeze(-1), posterior.distribution.covariance_matrix
    best = int(mean.argmax())
    spread = K.diagonal() + K[best, best] - 2 * K[best]
    others = [i for i in range(len(X)) if i != best]
    expected = torch.special.ndtr((mean[best] - mean) / spread.sqrt())[others]
    with manual_seed(0):
        found = superiority(gp, X, best)[others]
    # Four standard errors of a probability of one half, which has the largest error.
    assert (found - expected).abs().max() < 4 * 0.5 / claims.NUM_SAMPLES**0.5


def test_coverage_of_outcomes_is_that_of_many_draws() -> None:
    X, Y = data(15)
    gp = PROBLEM.surrogate(X, Y, BOUNDS, 0, None)
    model = CalibratedModel.from_history(gp, OnlineConformal(0.2), num_initial=5)
    objective: Any = PROBLEM.build
    at, _ = data(4)
    for stated in (gp, model):
        with torch.no_grad():
            posterior = stated.posterior(at.unsqueeze(-2), observation_noise=True)
            lower, upper = posterior.quantile(at.new_tensor([0.1, 0.9])).flatten(1)
        with manual_seed(3):
            drawn = objective.observe(at.repeat(4000, 1)).view(4000, len(at))
        frequency = ((drawn >= lower) & (drawn <= upper)).double().mean(dim=0)
        assert (
            outcome_coverage(stated, at, objective) - frequency
        ).abs().max() < 4 * 0.5 / 4000**0.5


@pytest.mark.parametrize("name", mostly_slow(METHODS, ["plain", "localized"]))
def test_a_run_records_its_statements(name: str) -> None:
    with without_expected_warnings():
        result = claims.replicate(PROBLEM, METHODS[name], 2000)
        if name in ("robust", "localized"):  # one with a fit, one with a calibrator
            assert claims.replicate(PROBLEM, METHODS[name], 2000).extras == result.extras
    num = PROBLEM.num_initial + PROBLEM.num_evaluations
    assert result.inference_by_mean is not None
    recommended = result.inference_by_mean[-1]
    calibrated = name in ("recalibrated", "localized")
    endings = ("", EXCESS) if calibrated else ("",)
    for ending in endings:
        stated = result.extras[f"superiority{ending}"]
        claimed = result.extras[f"claimed{ending}"]
        assert len(stated) == len(claimed) == num
        assert [i for i, value in enumerate(stated) if value is None] == [recommended]
        assert [None if p is None else float(p >= CLAIM) for p in stated] == claimed
        assert len(result.extras[f"objective_covered{ending}"]) == num
    assert (f"claimed{EXCESS}" in result.extras) == calibrated
    expected = [
        None if i == recommended else float(result.f[recommended] > value)
        for i, value in enumerate(result.f)
    ]
    assert result.extras["better"] == expected
    # The archived data give the same numbers.
    entry = Entry.of(result, ARCHIVED).result()
    scores: list[Score] = [
        *(LogRegret(inference) for inference in ("mean", "evaluated")),
        *(Share(record) for record in ("covered", "objective_covered", "outcome_covered_in_box")),
        *(Claims(o, e, f) for o in ("start", "visited") for e in endings for f in (False, True)),
    ]
    for score in scores:
        assert score(entry) == pytest.approx(score(result), rel=1e-4, abs=1e-4)


def test_claims_are_counted() -> None:
    made = run()
    assert [Claims(o)(made) for o in ("start", "incumbent", "visited")] == [1.0, 1.0, 2.0]
    assert [Claims(o, false=True)(made) for o in ("start", "incumbent", "visited")] == [0, 1, 1]
    # The recommended point is not compared with itself.
    itself = run(incumbent=2)
    assert Claims("incumbent")(itself) == Claims("incumbent", false=True)(itself) == 0.0
    assert math.isnan(Claims("visited", EXCESS)(made))
