"""Methods are reproducible, stay inside the box, and record the interval that they stated."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from scipy.stats import norm

from benchmarks.calibration.ackley import heteroscedastic_ackley
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.runner import Failure, Task, run_task
from benchmarks.framework.sequential import Method
from benchmarks.framework.strategies import (
    ACQUISITIONS,
    AcquisitionStrategy,
    RandomStrategy,
    calibrate,
    prediction_extras,
    within_interval,
)
from benchmarks.framework.surrogates import fit_gp
from botorch_calib.calibration import QuantileRecalibrator

PROBLEM = heteroscedastic_ackley(num_evaluations=2)
QUICK = partial(AcquisitionStrategy, num_restarts=2, raw_samples=16)
BO = Method("bo", QUICK)


OF_OBJECTIVE = ("objective_covered", "objective_covered_in_box")


def run(method: Method, seed: int = 0) -> Result:
    outcome = run_task(Task(PROBLEM, method, seed))
    assert not isinstance(outcome, Failure), outcome.error
    return outcome


def test_plain_bo_is_reproducible_and_records_its_interval() -> None:
    result, again = run(BO), run(BO)
    assert (result.X, result.y, result.extras) == (again.X, again.y, again.extras)
    assert result.inference_by_mean is not None
    assert len(result.inference_by_mean) == 3
    assert set(result.extras) == {"pit", "covered", "width", *OF_OBJECTIVE}
    for pit, covered in zip(result.extras["pit"], result.extras["covered"], strict=True):
        assert pit is not None
        assert covered == float(0.1 <= pit <= 0.9)


def test_extras_of_a_gp_by_hand() -> None:
    X = torch.linspace(0, 1, 6, dtype=torch.double).unsqueeze(-1)
    gp = SingleTaskGP(X, torch.sin(4 * X))
    x = torch.tensor([[0.33]], dtype=torch.double)
    predictive = gp.posterior(x, observation_noise=True)
    spread = predictive.variance.sqrt().item()
    for deviations in (-3.0, -1.0, 0.0, 1.2, 1.4):
        y = predictive.mean.detach() + deviations * spread
        extras = prediction_extras(gp, x, y, alpha=0.2)
        assert extras["pit"] == pytest.approx(norm.cdf(deviations))
        assert extras["covered"] == float(abs(deviations) <= norm.ppf(0.9))
        assert extras["width"] == pytest.approx(2 * norm.ppf(0.9) * spread)


def test_intervals_of_the_objective() -> None:
    """They are marginal and without noise: they contain values within 1.28 standard deviations."""
    X = torch.rand(12, 2, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    gp = fit_gp(X, X.sum(dim=-1, keepdim=True).sin(), PROBLEM.bounds_tensor())
    posterior = gp.posterior(X)
    reach = torch.linspace(-2.0, 2.0, 12, dtype=torch.double).unsqueeze(-1)
    f = (posterior.mean + reach * posterior.variance.sqrt()).detach()
    covered = within_interval(gp, X, f, alpha=0.2)
    assert torch.equal(covered, reach.flatten().abs() < norm.ppf(0.9))
    strategies: list[Any] = [AcquisitionStrategy(PROBLEM, 0), RandomStrategy(PROBLEM, 0)]
    assert torch.equal(strategies[0].objective_covered(gp, X, f), covered)
    assert strategies[1].objective_covered(None, X, f) is None


@pytest.mark.parametrize("acquisition", ["ei", "ucb"])
def test_acquisitions_agree_where_nothing_was_learned(acquisition) -> None:
    X = torch.linspace(0, 1, 6, dtype=torch.double).unsqueeze(-1)
    gp = SingleTaskGP(X, torch.sin(4 * X))
    # All six points are initial points, and quantiles start as the quantiles of the GP.
    calibrated = calibrate(gp, QuantileRecalibrator, num_initial=6)
    best, x = torch.tensor(0.9).double(), torch.tensor([[[0.33]], [[0.71]]], dtype=torch.double)
    plain = ACQUISITIONS[acquisition, False](gp, best)(x)
    other = ACQUISITIONS[acquisition, True](calibrated, best)(x)
    assert torch.allclose(plain, other, rtol=1e-6)
