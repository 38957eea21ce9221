"""Observations that a model's data already contain, exactly or up to rounding, are ignored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from torch import Tensor

from botorch_calib import CalibratedModel, CalibratedModelList
from botorch_calib.exceptions import CalibrationWarning
from botorch_calib.models import CensoredDelayModel, stand_ins
from botorch_calib.models.known_data import KnownData, still_pending, take_together
from tests.gps import GaussianLaw
from tests.random_numbers import uniform


def in_six_digits(values: Tensor) -> Tensor:
    """Values as they come back from a file with six digits."""
    flat = [float(f"{value:.6g}") for value in values.flatten().tolist()]
    return values.new_tensor(flat).view_as(values)


def in_single_precision(values: Tensor) -> Tensor:
    return values.float().to(values)


ROUNDINGS = pytest.mark.parametrize("rounded", [in_single_precision, in_six_digits])
DTYPES = pytest.mark.parametrize("dtype", [torch.double, torch.float])
Rounding = Callable[[Tensor], Tensor]


def data(num: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    X = uniform(num, 2, generator=torch.Generator().manual_seed(num)).to(dtype)
    return X, (3.0 * X.sum(dim=-1, keepdim=True)).sin()


def calibrated(X: Tensor, Y: Tensor) -> Any:
    return CalibratedModel(SingleTaskGP(X, Y), GaussianLaw())


def delayed(X: Tensor, Y: Tensor) -> Any:
    return CensoredDelayModel(calibrated(X, Y), 2.0 + X[:2], -3.0)


def learned(model: Any) -> tuple[int, int]:
    """The numbers of residuals and of observations."""
    return model.calibrator.num_updates, len(model.model.train_targets)


@DTYPES
@ROUNDINGS
@pytest.mark.parametrize("make", [calibrated, delayed])
def test_data_that_come_back_rounded(make: Any, rounded: Rounding, dtype: torch.dtype) -> None:
    X, Y = data(13, dtype)
    model = make(X[:12], Y[:12])
    with pytest.warns(CalibrationWarning, match="12 of 13 observations"):
        model.observe(rounded(X), rounded(Y))
    assert learned(model) == (1, 13)


@DTYPES
@ROUNDINGS
def test_a_refit_to_rounded_data_leaves_no_hindsight(rounded: Rounding, dtype: torch.dtype) -> None:
    X, Y = data(13, dtype)
    model = calibrated(X[:12], Y[:12]).with_model(SingleTaskGP(rounded(X), rounded(Y)))
    with pytest.warns(CalibrationWarning, match="1 of 1 observations"):
        model.observe(X[12:], Y[12:])
    assert learned(model) == (0, 13)


@DTYPES
@ROUNDINGS
def test_each_outcome_of_a_list(rounded: Rounding, dtype: torch.dtype) -> None:
    X, Y = data(13, dtype)
    own = CalibratedModelList(calibrated(X[:12], Y[:12]), calibrated(X, Y.square()))
    with pytest.warns(CalibrationWarning, match="1[23] of 13 observations"):
        own.observe(rounded(X), rounded(torch.cat([Y, Y.square()], dim=-1)))
    assert [learned(each) for each in own.models] == [(1, 13), (0, 13)]


@DTYPES
@ROUNDINGS
def test_stand_ins_that_come_back_as_bounds(rounded: Rounding, dtype: torch.dtype) -> None:
    X, Y = data(13, dtype)
    beyond = torch.zeros_like(Y)
    beyond[10:] = 1.0
    told = stand_ins(SingleTaskGP(X[:8], Y[:8]), X, Y, beyond)
    model = calibrated(X[:12], told[:12])
    with pytest.warns(CalibrationWarning, match="12 of 13 observations"):
        model.observe(rounded(X), rounded(Y), beyond=beyond)
    assert learned(model) == (1, 13)


@DTYPES
def test_new_observations_beside_known_ones_are_kept(dtype: torch.dtype) -> None:
    """Points within six digits with other values, and other points with equal values."""
    X, Y = data(12, dtype)
    model = calibrated(X, Y)
    near = X[:3] * (1.0 + 2e-6)
    assert not (near == X[:3]).any()
    model.observe(near, Y[:3] + 0.01)
    model.observe(X[3:6] + 0.01, Y[3:6])
    assert learned(model) == (6, 18)


@pytest.mark.filterwarnings("ignore:Data .input features. is not")
def test_points_in_a_narrow_range_far_from_0_are_distinct() -> None:
    """Hours in seconds since 1970: all of them agree in the first five digits."""
    hours = 1.7e9 + 3600.0 * torch.arange(6, dtype=torch.double).unsqueeze(-1)
    model = calibrated(hours[:5], hours.new_tensor([[1.0], [2.0], [3.0], [2.0], [1.0]]))
    model.observe(hours[5:], torch.ones_like(hours[5:]))
    assert len(model.model.train_targets) == 6


@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_exact_copies_are_found_before_rounded_ones(order: list[int]) -> None:
    X, Y = data(3, torch.double)
    known = KnownData(X, Y)
    each = [(X[0].tolist(), float(Y[0]), 0), ((X[0] * (1 + 1e-6)).tolist(), float(Y[0]), 0)]
    found = known.take_all([each[i] for i in order])
    assert [found[i] for i in order] == [True, False]


def test_rounded_pending_points_have_arrived() -> None:
    X, Y = data(12, torch.double)
    model = delayed(X, Y)
    model.observe(in_six_digits(model.X_pending[:1]), Y[:1])
    assert torch.equal(model.X_pending, 2.0 + X[1:2])


def test_outcomes_are_taken_together_or_not_at_all() -> None:
    X = torch.tensor([[0.1], [0.1]], dtype=torch.double)
    data = {
        "a": KnownData(X, torch.tensor([[1.0], [2.0]], dtype=torch.double)),
        "b": KnownData(X[:1], torch.tensor([[3.0]], dtype=torch.double)),
    }
    assert not take_together(data, [0.1], {"a": (2.0, 0), "b": (4.0, 0)})
    assert take_together(data, [0.1], {"a": (2.0, 0)})
    assert not take_together(data, [0.1], {"a": (2.0, 0)})
    assert take_together(data, [0.1], {"a": (1.0, 0), "b": (2.5, 1)})
    assert not any(any(each.values.values()) for each in data.values())


def test_one_pending_point_far_from_zero_is_told_from_its_neighbour() -> None:
    """Six digits of 300 are more than a thousandth of the range of the inputs, 1."""
    X = 300.0 + torch.rand(8, 1, dtype=torch.double, generator=torch.Generator().manual_seed(0))
    gp = SingleTaskGP(X, X - 300.0, input_transform=Normalize(1))
    model = CensoredDelayModel(gp, X[:1] + 0.01, 0.0)
    model.observe(X[:1] + 0.0115, torch.tensor([[0.5]], dtype=torch.double))
    assert len(model.X_pending) == 1
    model.observe((X[:1] + 0.01).float().double(), torch.tensor([[0.6]], dtype=torch.double))
    assert len(model.X_pending) == 0


@ROUNDINGS
def test_an_observation_removes_one_pending_point(rounded: Rounding) -> None:
    """The first of equal points is removed."""
    pending = data(5, torch.double)[0][[0, 1, 0, 2, 3]]
    gp = SingleTaskGP(*data(6, torch.double))
    told = rounded(pending[[3, 0]])
    assert torch.equal(still_pending(pending, told, gp), pending[[1, 2, 4]])
    assert torch.equal(still_pending(pending, told + 0.01, gp), pending)
    assert not len(still_pending(pending[:0], told, gp))
