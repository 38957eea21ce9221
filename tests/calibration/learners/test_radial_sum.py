"""Radial sums on a grid of two sets of columns compared with sums at single inputs."""

import pytest
import torch
from torch.autograd import gradcheck
from torch.testing import assert_close

from botorch_calib.calibration.learners.radial_sum import RadialSum

COLUMNS, OTHERS = [2, 0], [1]


def pairs(dtype: torch.dtype = torch.double) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.rand(num, 3, generator=generator, dtype=dtype) for num in (4, 5))
    Z = torch.empty(4, 5, 3, dtype=dtype)
    Z[..., COLUMNS], Z[..., OTHERS] = first[:, None, COLUMNS], second[:, OTHERS]
    return Z.requires_grad_()


def radial_sum(num_levels: int, dtype: torch.dtype = torch.double) -> RadialSum:
    generator = torch.Generator().manual_seed(1)
    sizes = (num_levels,), (6, 3), (12, num_levels)
    constants, centers, coefficients = (
        torch.rand(*size, generator=generator, dtype=dtype) for size in sizes
    )
    return RadialSum(constants, centers, [0.3, 1.5], coefficients)


@pytest.mark.parametrize("dtype", [torch.float, torch.double])
@pytest.mark.parametrize("num_levels", [1, 3])
def test_at_pairs(num_levels, dtype):
    radial, Z = radial_sum(num_levels, dtype), pairs(dtype)
    found, expected = radial.at_pairs(Z, COLUMNS, OTHERS), radial.at(Z)
    assert_close(found, expected)
    weights = torch.rand_like(expected)
    slopes = [torch.autograd.grad(each, Z, weights)[0] for each in (found, expected)]
    assert_close(*slopes)


def test_slopes_by_differences():
    # Along directions that leave all pairs pairs
    radial, Z = radial_sum(2), pairs()
    x, c = Z[:, :1, COLUMNS].detach().requires_grad_(), Z[:1, :, OTHERS].detach().requires_grad_()

    def function(x, c):
        whole = torch.cat([x.expand(-1, 5, -1), c.expand(4, -1, -1)], dim=-1)
        return radial.at_pairs(whole[..., [1, 2, 0]], COLUMNS, OTHERS)

    assert gradcheck(function, (x, c))
