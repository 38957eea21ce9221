"""Outcomes that are equal by chance or told twice, and constraints that share data or a model."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
import torch
from botorch.exceptions.errors import InputDataError
from botorch.models import SingleTaskGP
from torch import Tensor

from botorch_calib import CalibratedModel, ChanceConstraint, LocalizedConformal
from botorch_calib.exceptions import CalibrationWarning
from tests.decisions.test_told_again import AGAIN, fitted, outcomes, size
from tests.long_grids import mostly_slow
from tests.random_numbers import normal, uniform

pytestmark = pytest.mark.filterwarnings("ignore:Data .outcome observations. is not standardized")
EARLIER = "An earlier constraint has decided"
FURTHER = "are further measurements in the data of the new model. They count"


def drawn(num: int, generator: torch.Generator, grid: int = 0) -> Tensor:
    """Points of the unit square or, with ``grid``, of a grid with this number of points a side."""
    if grid:
        return torch.randint(grid, (num, 2), generator=generator).double() / (grid - 1)
    return uniform(num, 2, generator=generator)


def measured(X: Tensor, generator: torch.Generator, step: float = 0.0) -> Tensor:
    """Outcomes ``n x 1`` or, with ``step``, their multiples of ``step``."""
    Y = X.sum(dim=-1, keepdim=True) + 0.3 * normal(len(X), 1, generator=generator)
    return (Y / step).round() * step if step else Y


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_retry", [False, True])
@pytest.mark.parametrize("is_refitted", [False, True])
def test_a_coarse_outcome_told_twice_counts_once(
    seed: int, is_retry: bool, is_refitted: bool
) -> None:
    generator = torch.Generator().manual_seed(seed)
    X = drawn(12, generator)
    Y = measured(X, generator, 0.5)
    tested = ChanceConstraint(fitted(X, Y), upper=1.6, rows=())
    for num in range(1, 7):
        x = drawn(1, generator)
        X, Y = torch.cat([X, x]), torch.cat([Y, measured(x, generator, 0.5)])
        if is_retry:
            tested.observe(X[-1:], Y[-1:])
        if is_refitted and is_retry:
            tested = tested.with_model(fitted(X, Y))
        told = slice(-1, None) if is_retry else slice(-2, None)
        with pytest.warns(CalibrationWarning, match=f"^1 of {2 - is_retry} outcomes were {AGAIN}"):
            tested.observe(X[told], Y[told])
        if is_refitted and not is_retry:
            tested = tested.with_model(fitted(X, Y))
        assert tested.num_decisions == tested.num_observed == num and size(tested) == 12 + num


@pytest.mark.parametrize("seed", range(3))
def test_equal_measurements_on_a_grid_count_once_the_model_has_them(seed: int) -> None:
    """Nothing told them from outcomes that were told again, until the data of the refit."""
    generator = torch.Generator().manual_seed(seed)
    X = drawn(12, generator, 4)
    Y = measured(X, generator, 1.0)
    tested = ChanceConstraint(fitted(X, Y), upper=2.5, rows=())
    num_further = 0
    for num in range(3, 46, 3):
        x = drawn(3, generator, 4)
        y = measured(x, generator, 1.0)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            tested.observe(x, y)
            num_ignored = num - tested.num_decisions
            X, Y = torch.cat([X, x]), torch.cat([Y, y])
            tested = tested.with_model(fitted(X, Y))
        assert len(told) == (2 if num_ignored else 0)  # never in silence
        if num_ignored:
            num_further += num_ignored
            assert f"{num_ignored} of 3 outcomes were {AGAIN}" in str(told[0].message)
            assert FURTHER in str(told[1].message)
        assert tested.num_decisions == tested.num_observed == num
    assert num_further > 3
    assert sorted(outcomes(tested)) == sorted(Y[12:].flatten().tolist())
    rebuilt = ChanceConstraint(tested.model, 2.5, rows=json.loads(json.dumps(tested.decisions)))
    assert rebuilt.budget_left == tested.budget_left


def test_a_further_measurement_is_judged_by_the_quantiles_from_before() -> None:
    X = torch.tensor([[0.1, 0.2], [0.4, 0.4], [0.8, 0.7], [0.9, 0.1]]).double()
    Y = torch.tensor([[0.0], [1.0], [1.0], [0.0]]).double()
    tested = ChanceConstraint(fitted(X, Y), upper=9.5, rows=())
    (expected,) = ChanceConstraint(fitted(X, Y), upper=9.5, rows=()).decide(X[1:2])
    flag = torch.ones(1, 1)
    for told in ((X[1:2], Y[1:2]), (X[1:2], Y[1:2] - 0.5, None, True, flag)):
        with pytest.warns(CalibrationWarning, match=AGAIN):
            tested.observe(*told)
    # A refit to the same data shows nothing, and neither do data of an open decision.
    (open_row,) = tested.decide(X[1:2])
    more = torch.cat([X, X[1:2]]), torch.cat([Y, Y[1:2]])
    for data in ((X, Y), more):
        assert tested.with_model(fitted(*data)).decisions == [open_row]
    tested.withdraw(X[1:2])
    with pytest.warns(CalibrationWarning, match=f"^1 of the outcomes.*{FURTHER}"):
        refitted = tested.with_model(fitted(*more))
    assert refitted.decisions == [expected | {"outcomes": {"y": 1.0}}]
    assert refitted.with_model(fitted(*more)).num_decisions == 1


def test_equal_outcomes_after_a_refit_are_hindsight() -> None:
    """The refitted model has one more than the rows, so it was a second measurement."""
    X = torch.tensor([[0.1, 0.2], [0.4, 0.4], [0.8, 0.7], [0.9, 0.1]]).double()
    Y = torch.tensor([[0.0], [1.0], [1.0], [0.0]]).double()
    more = torch.cat([X, X[1:2]]), torch.cat([Y, Y[1:2]])
    tested = ChanceConstraint(fitted(X, Y), upper=9.5, rows=())
    with pytest.raises(InputDataError, match="use hindsight. Call `observe` first, then refit"):
        tested.with_model(fitted(*more)).observe(X[1:2], Y[1:2])


def test_the_error_after_an_ignored_outcome_names_it() -> None:
    """In a loop that changes its model in place, which shows a second measurement too late."""
    X = torch.tensor([[0.1, 0.2], [0.4, 0.4], [0.8, 0.7], [0.9, 0.1]]).double()
    Y = torch.tensor([[0.0], [1.0], [1.0], [0.0]]).double()
    gp = SingleTaskGP(X, Y, outcome_transform=None).eval()
    tested = ChanceConstraint(gp, upper=9.5, rows=())
    with pytest.warns(CalibrationWarning, match="call `decide` before each measurement"):
        tested.observe(X[1:2], Y[1:2], condition=False)
    more: Any = torch.cat([X, X[1:2]]), torch.cat([Y, Y[1:2]]).squeeze(-1)
    tested.model.set_train_data(*more, strict=False)
    with pytest.raises(InputDataError, match="at this point was ignored.*call `decide` before"):
        tested.observe(X[1:2], Y[1:2])
    assert not tested.decisions


@pytest.mark.parametrize("kind", mostly_slow(["grid", "counts", "same design"], ["grid"]))
def test_independent_runs_are_not_told_of_each_other(kind: str) -> None:
    """In one process, on a grid of points, so that their last points are often the same."""
    grid, step = (4, 1.0) if kind == "counts" else (11, 0.0)
    design = drawn(16, torch.Generator().manual_seed(1), grid)
    limit = {"grid": 3.01, "counts": 3.02, "same design": 3.03}[kind]  # registered together
    for seed in range(15):
        generator = torch.Generator().manual_seed(seed)
        X = design if kind == "same design" else drawn(16, generator, grid)
        Y = measured(X, generator, step)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            tested = ChanceConstraint(fitted(X, Y), upper=limit)
            for _ in range(10):
                x = drawn(1, generator, grid)
                tested.decide(x)
                tested.observe(x, measured(x, generator, step))


@pytest.mark.parametrize("step", [0.0, 1.0])
@pytest.mark.parametrize("is_decided", [False, True])
def test_a_new_constraint_on_data_with_decisions_is_warned(step: float, is_decided: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    X = drawn(30, generator, 4)
    Y = measured(X, generator, step)
    limit = 4.0 + step + 0.1 * is_decided
    tested = ChanceConstraint(fitted(X, Y), upper=limit)
    for _ in range(3):
        x = drawn(2, generator, 5)
        y = measured(x, generator, 0.0)
        if is_decided:
            tested.decide(x)
        else:
            tested.observe(x, y)
        X, Y = torch.cat([X, x]), torch.cat([Y, y])
        with pytest.warns(CalibrationWarning, match=EARLIER):
            ChanceConstraint(fitted(X, Y.float().double()), upper=limit)
        with pytest.warns(CalibrationWarning, match=EARLIER):
            tested = ChanceConstraint(fitted(X, Y), upper=limit)
        assert not tested.num_decisions


@pytest.mark.parametrize("is_objective", [False, True])
def test_a_shared_calibrated_model_asks_for_decisions_first(is_objective: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    X = drawn(12, generator)
    Y = measured(X, generator)
    model = CalibratedModel(fitted(X, Y), LocalizedConformal(0.2), denoise=False)
    first = ChanceConstraint(model, lower=-5.0, rows=())
    second = ChanceConstraint(model, upper=5.0, rows=())
    x = drawn(2, generator)
    y = measured(x, generator)
    teach: Any = model.observe if is_objective else first.observe
    teach(x[:1], y[:1])
    match = "one `ChanceConstraint` with all outcomes by name and all limits, or call `decide`"
    with pytest.raises(InputDataError, match=match) as error:
        second.observe(x[:1], y[:1])
    assert "earlier model" not in str(error.value)
    for each in (first, second):
        each.decide(x[1:])
    teach(x[1:], y[1:])
    second.observe(x[1:], y[1:])
    assert second.num_observed == 1 and size(second) == 14 and model.calibrator.num_updates == 2
    both = ChanceConstraint(model, upper=5.0, lower=-5.0, rows=())
    both.observe(x[:1] + 1.0, y[:1])
    assert both.num_observed == 1
