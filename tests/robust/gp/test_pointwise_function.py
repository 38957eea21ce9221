"""Slopes of the steepness by two derivatives and by differences of first ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.robust.gp.pointwise_function import PointwiseFunction
from botorch_calib.robust.joint_inputs import Columns
from tests.gps import DOUBLE
from tests.random_numbers import uniform

CENTERS = torch.tensor([[0.1, 0.9], [0.7, 0.3]], **DOUBLE)


def test_differences_are_as_good_as_second_derivatives() -> None:
    def slopes(scale: Tensor | None) -> Tensor:
        def function(Z: Tensor) -> Tensor:
            return torch.cdist(Z, CENTERS).sin().sum(dim=-1).squeeze(-1)

        generator = torch.Generator().manual_seed(0)
        X, C = uniform(3, 1, generator=generator), uniform(4, 1, generator=generator)
        pointwise = PointwiseFunction(function, Columns(2, 1), scale)
        steepness = pointwise.gradient_norms(X.requires_grad_(), C)
        return torch.autograd.grad(steepness.sum(), X)[0]

    assert_close(slopes(torch.ones(1, **DOUBLE)), slopes(None), rtol=1e-6, atol=1e-6)
