"""Radial kernels between two sets of points: against GPyTorch's, with all derivatives."""

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.models.radial_kernels import base_kernel, radial_between, radial_profile

KERNELS = {
    "rbf": lambda: RBFKernel(ard_num_dims=3),
    "matern 3/2": lambda: MaternKernel(nu=1.5, ard_num_dims=3),
    "matern 5/2": lambda: MaternKernel(nu=2.5, ard_num_dims=3),
}
kernels = pytest.mark.parametrize("name", KERNELS)


def points(*shape: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, 3, generator=generator, dtype=torch.double)


def make(name: str) -> Kernel:
    kernel = KERNELS[name]()
    kernel.lengthscale = torch.tensor([[0.2, 1.5, 0.7]])
    kernel = ScaleKernel(kernel)
    kernel.outputscale = 2.3
    return kernel.double()


# GPyTorch computes distances of many points by products; the position of inputs must not cost
# digits.
@kernels
@pytest.mark.parametrize(("num", "far"), [(4, 0.0), (40, 1e3)])
def test_against_gpytorch(name, num, far):
    kernel, inputs, X = make(name), far + points(2, num, seed=0), far + points(2, num, seed=1)
    X[:, 0], X[:, 1] = inputs[:, 0], inputs[:, 1] + 1e-4
    at = inputs.requires_grad_(), X.requires_grad_()
    got, at_zero = radial_between(inputs, kernel(X))
    expected = kernel(inputs, X).to_dense()
    assert_close(got, expected, rtol=1e-13, atol=1e-14)
    assert_close(at_zero.expand(2, num), kernel(X).diagonal(dim1=-1, dim2=-2))
    weight = torch.randn(2, num, num, generator=torch.Generator().manual_seed(2)).double()
    found, known = (torch.autograd.grad(values, at, weight) for values in (got, expected))
    assert_close(found, known, rtol=1e-11, atol=1e-11)


@kernels
def test_derivatives(name):
    kernel, inputs, X = make(name), points(3, seed=0), points(2, seed=1)

    def function(inputs, X):
        return radial_between(inputs, kernel(X))[0]

    at = inputs.requires_grad_(), X.requires_grad_()
    assert gradcheck(function, at, atol=1e-7)
    assert gradgradcheck(function, at, atol=1e-6)


@kernels
def test_second_derivatives_at_equal_points_are_finite(name):
    X = points(3, seed=0).requires_grad_()
    total = radial_between(X.detach(), make(name)(X))[0].sum()
    (gradient,) = torch.autograd.grad(total, X, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), X)
    assert second.isfinite().all()


@kernels
def test_slope_of_a_profile(name):
    profile = radial_profile(base_kernel(make(name)))
    s = torch.tensor([1e-4, 0.3, 2.0, 30.0]).double().requires_grad_()
    k, g = profile.at(s)
    assert_close(torch.autograd.grad(k.sum(), s)[0], profile.slope * g)
