"""Functions that can, or cannot, be differentiated twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.robust.gp.pointwise_function import PointwiseFunction
from botorch_calib.robust.joint_inputs import Columns
from tests.gps import DOUBLE
from tests.random_numbers import uniform

COLUMNS = Columns(2, 1)
CENTERS = torch.tensor([[0.1, 0.9], [0.7, 0.3]], **DOUBLE)


def city_block(Z: Tensor) -> Tensor:
    """PyTorch has no second derivative of distances by the sum of differences."""
    return torch.cdist(Z, CENTERS, p=1.0).square().sum(dim=-1).squeeze(-1)


def slopes(function: Any) -> tuple[Tensor, PointwiseFunction]:
    pointwise = PointwiseFunction(function, COLUMNS, torch.ones(1, **DOUBLE), is_rough=True)
    generator = torch.Generator().manual_seed(0)
    X, C = uniform(3, 1, generator=generator), uniform(4, 1, generator=generator)
    steepness = pointwise.gradient_norms(X.requires_grad_(), C)
    return torch.autograd.grad(steepness.sum(), X)[0], pointwise


def test_differences_where_there_is_no_second_derivative() -> None:
    with pytest.raises(NotImplementedError, match="_cdist_backward"):
        Z = torch.full((1, 1, 2), 0.4, **DOUBLE, requires_grad=True)
        (gradient,) = torch.autograd.grad(city_block(Z).sum(), Z, create_graph=True)
        gradient.sum().backward()
    found, pointwise = slopes(city_block)
    expected, other = slopes(lambda Z: (Z - CENTERS).abs().sum(dim=-1).square().sum(dim=-1))
    assert other._twice and not pointwise._twice
    assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_errors_of_the_function_are_its_own() -> None:
    """Also if they come once."""
    calls = []

    def broken(Z: Tensor) -> Tensor:
        calls.append(len(Z))
        if len(calls) == 1:
            raise RuntimeError("the simulator has no licence")
        return Z.prod(dim=-1).squeeze(-1)

    with pytest.raises(RuntimeError, match="no licence"):
        slopes(broken)
