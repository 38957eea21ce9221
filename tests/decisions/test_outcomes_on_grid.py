"""Outcomes on a grid: found by their differences, and the limits that suit them."""

from __future__ import annotations

import warnings

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from torch import Tensor

from botorch_calib import ChanceConstraint
from botorch_calib.decisions.decision_records import sides_of
from botorch_calib.decisions.outcomes_on_grid import halfway_limits, step_of_grid
from botorch_calib.exceptions import CalibrationWarning
from tests.gps import make_data


@pytest.mark.parametrize("dtype", [torch.double, torch.float])
@pytest.mark.parametrize("step", [0.5, 1.0, 0.1, 3e4])
def test_step_of_rounded_numbers(step: float, dtype: torch.dtype) -> None:
    numbers = torch.randn(30, generator=torch.Generator().manual_seed(0)).to(dtype) * 2.0 * step
    outcomes = 7.0 * step + (numbers / step).round() * step
    assert step_of_grid(outcomes) == pytest.approx(step, rel=1e-4)
    assert step_of_grid(numbers) is None


@pytest.mark.parametrize(
    "outcomes",
    [
        [],
        [1.0],
        [2.0, 2.0, 2.0],
        [0.0, 1.0, 1.0],  # a repeated measurement, or half of the outcomes of a test
        [0.0, 1.0, 2.5, 2.5, 3.1],
        [0.0, 1.0, 2.0, 3.0],  # nothing twice
    ],
)
def test_no_grid(outcomes: list[float]) -> None:
    assert step_of_grid(torch.tensor(outcomes)) is None


def test_passed_or_failed_is_a_grid() -> None:
    assert step_of_grid(torch.tensor([0.0, 1.0, 1.0, 0.0])) == 1.0


@pytest.mark.parametrize("origin", [0.0, 0.3, -7.0])
@pytest.mark.parametrize("upper", [-2.0, -1.9, -0.3, 0.0, 0.2, 1.0, 1.8])
def test_halfway_limits_allow_the_same_outcomes(upper: float, origin: float) -> None:
    outcomes = origin + torch.arange(-8, 9, dtype=torch.double)
    limits = {"lower": origin - 2.0, "upper": origin + upper}
    better = limits | halfway_limits(sides_of(**limits), outcomes, 1.0)
    for y in outcomes.tolist():
        for side, other in zip(sides_of(**limits), sides_of(**better), strict=True):
            assert side.exceeded(y, side.limit) == other.exceeded(y, other.limit)
    # The next outcomes beyond are as far away as the last ones within.
    assert better["lower"] == origin - 2.5
    assert (better["upper"] - origin) % 1.0 == pytest.approx(0.5, abs=0.25)


def process(step: float | None = None) -> tuple[SingleTaskGP, Tensor]:
    """A process of outcomes, rounded to ``step``, and its inputs."""
    X, Y, _ = make_data(30, seed=0)
    Y = Y if step is None else (Y / step).round() * step
    gp = SingleTaskGP(X, Y, outcome_transform=Standardize(1))
    gp.likelihood.noise = 0.05
    return gp, X


def test_a_limit_on_the_grid_warns_and_names_the_better_one() -> None:
    gp, _ = process(0.5)
    with pytest.warns(CalibrationWarning, match="Give `upper=0.75`, halfway"):
        ChanceConstraint(gp, upper=0.5)
    with pytest.warns(CalibrationWarning, match="Give `lower=-0.75`"):
        ChanceConstraint(gp, lower=-0.5, upper=0.75)


def test_a_limit_halfway_certifies_more() -> None:
    gp, X = process(0.5)
    with pytest.warns(CalibrationWarning, match="grid"):
        on = ChanceConstraint(gp, upper=0.5)
    halfway = ChanceConstraint(gp, upper=0.75)
    assert halfway.certified(X.unsqueeze(-2)).sum() > on.certified(X.unsqueeze(-2)).sum()


@pytest.mark.parametrize("step", [1e-3, None])
def test_no_warning_of_fine_grids_and_of_continuous_outcomes(step: float | None) -> None:
    gp, _ = process(step)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CalibrationWarning)
        ChanceConstraint(gp, upper=0.5)
