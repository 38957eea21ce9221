"""Outcomes on a grid: found by their differences, and the limits that suit them."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from torch import Tensor

from botorch_calib import ChanceConstraint
from botorch_calib.decisions import chance_constraints, joint_chance_constraints
from botorch_calib.decisions.decision_records import sides_of
from botorch_calib.decisions.outcomes_on_grid import advice, halfway_limits, step_of_grid
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.integrations._stored_decisions import Books
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


@pytest.fixture(autouse=True)
def _nothing_said() -> None:
    chance_constraints._ADVISED.clear()


def said(make: Any) -> list[str]:
    """What is said of grids, where any."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        make()
    grids = [each for each in caught if "grid" in str(each.message)]
    assert all(each.filename == __file__ for each in grids)
    return [str(each.message) for each in grids]


def test_a_limit_on_the_grid_warns_and_names_the_better_one() -> None:
    gp, _ = process(0.5)
    (text,) = said(lambda: ChanceConstraint(gp, upper=0.5))
    assert "the upper limit 0.5 it takes a part of the outcomes that are allowed for viol" in text
    assert "certifies less than it could. Move the limit by +0.25, to 0.75, halfway" in text
    assert "Where the limit is fixed, move all outcomes, from the first one on, by -0.25" in text
    (text,) = said(lambda: ChanceConstraint(gp, lower=-0.5, upper=0.75))
    assert "the lower limit -0.5 it takes" in text and "by -0.25, to -0.75, halfway" in text


def test_a_limit_beyond_halfway_certifies_too_much_and_the_warning_says_so() -> None:
    gp, X = process(0.5)
    for limits, better in ({"upper": 0.95}, "-0.2, to 0.75"), ({"lower": -0.95}, "+0.2, to -0.75"):
        (text,) = said(lambda limits=limits: ChanceConstraint(gp, **limits))
        assert "that violate it for allowed ones, and certifies points that keep it less" in text
        assert f"Move the limit by {better}, halfway" in text
    with pytest.warns(CalibrationWarning, match="grid"):
        beyond = ChanceConstraint(gp, upper=0.95)
    halfway = ChanceConstraint(gp, upper=0.75)
    assert beyond.certified(X.unsqueeze(-2)).sum() > halfway.certified(X.unsqueeze(-2)).sum()


def test_limits_far_from_zero_are_told_apart() -> None:
    outcomes = 12345678.0 + torch.tensor([0, 0, 1, 2, 3], dtype=torch.double)
    (text,) = advice(sides_of(None, 12345680.0), outcomes, 1.0).values()
    assert "limit 12345680 it" in text and "by +0.5, to 12345680.5, halfway" in text
    (text,) = advice(sides_of(None, 0.2), outcomes * 0.1, 0.1).values()
    assert "by +0.05, to 0.25, halfway" in text
    (text,) = advice(sides_of(None, 6e4), outcomes.sub(12345678.0) * 3e4, 3e4).values()
    assert "by +15000, to 75000, halfway" in text


def test_a_carried_constraint_warns_once_its_data_show_a_grid() -> None:
    """Of whatever follows it, and points to the call that did."""
    (few, _), (gp, _) = process(), process(0.5)
    constraint = ChanceConstraint(few, upper=0.5)
    (text,) = said(lambda: constraint.with_model(gp))
    assert "to 0.75" in text
    assert not said(lambda: constraint.with_model(gp).with_model(process(0.5)[0]))
    assert len(said(lambda: constraint.with_model(process(0.25)[0]))) == 1  # another limit


def test_a_constraint_made_anew_for_each_round_warns_once() -> None:
    gp, _ = process(0.5)
    assert said(lambda: ChanceConstraint.from_records(gp, [], upper=0.5))
    assert not said(lambda: ChanceConstraint.from_records(process(0.5)[0], [], upper=0.5))
    # A new one is a campaign of its own.
    assert said(lambda: ChanceConstraint(gp, upper=0.5))
    assert said(lambda: ChanceConstraint(gp, upper=0.5))


def test_the_outcome_is_named() -> None:
    (gp, _), (other, _) = process(0.5), process()
    limits = [(None, 0.5), (None, 0.5)]
    (text,) = said(lambda: joint_chance_constraints([other, gp], limits))
    assert text.startswith("Outcomes of `models[1]` lie on a grid")
    books = Books({"defects": (None, 0.5), "cost": (None, 0.5)}, level=0.9)
    models = {"defects": gp, "cost": other}
    (text,) = said(lambda: books.constraints(models))
    assert text.startswith("Outcomes of 'defects' lie on a grid")
    assert not said(lambda: books.constraints(models))
    assert len(said(lambda: books.constraints({"defects": other, "cost": gp}))) == 1


def test_earlier_decisions_are_told_where_a_constraint_is_made() -> None:
    gp, X = process()
    ChanceConstraint(gp, upper=0.5).commit(X[:1])
    for make in (
        lambda: ChanceConstraint(gp, upper=0.5),
        lambda: ChanceConstraint.from_history(gp, upper=0.5),
        lambda: joint_chance_constraints([gp], [(None, 0.5)]),
    ):
        with pytest.warns(CalibrationWarning, match="from_records") as caught:
            make()
        assert caught[0].filename == __file__


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
