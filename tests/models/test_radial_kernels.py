"""Radial kernels between two sets of points: against GPyTorch's, with all derivatives."""

import pytest
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.models.radial_kernels import radial_between

KERNELS = {
    "rbf": lambda: RBFKernel(ard_num_dims=3),
    "matern 3/2": lambda: MaternKernel(nu=1.5, ard_num_dims=3),
    "matern 5/2": lambda: MaternKernel(nu=2.5, ard_num_dims=3),
}
kernels = pytest.mark.parametrize("name", KERNELS)


def points(*shape: int, seed: int, dtype: torch.dtype = torch.double) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*shape, 3, generator=generator, dtype=torch.double).to(dtype)


def make(name: str, scaled: bool = True, dtype: torch.dtype = torch.double) -> Kernel:
    kernel = KERNELS[name]()
    kernel.lengthscale = torch.tensor([[0.2, 1.5, 0.7]])
    if scaled:
        kernel = ScaleKernel(kernel)
        kernel.outputscale = 2.3
    return kernel.to(dtype)


# GPyTorch's distances of many points are products; where inputs lie is not to cost digits
@kernels
@pytest.mark.parametrize(("num", "scaled", "far"), [(4, False, 0.0), (40, True, 1e3)])
def test_against_gpytorch(name, num, scaled, far):
    kernel = make(name, scaled)
    inputs, X = far + points(num, seed=0), far + points(2, num, seed=1)
    inputs = inputs.expand(2, -1, -1).clone()
    X[:, 0], X[:, 1] = inputs[:, 0], inputs[:, 1] + 1e-4
    X.requires_grad_(), inputs.requires_grad_()
    weight = torch.randn(2, num, num, generator=torch.Generator().manual_seed(2)).double()
    got, at_zero = radial_between(inputs, kernel(X))
    expected = kernel(inputs, X).to_dense()
    assert_close(got, expected, rtol=1e-13, atol=1e-14)
    assert_close(at_zero * torch.ones(2, num).double(), kernel(X).diagonal(dim1=-1, dim2=-2))
    found = zip(
        torch.autograd.grad(got, (X, inputs), weight),
        torch.autograd.grad(expected, (X, inputs), weight),
        strict=True,
    )
    for a, b in found:
        assert_close(a, b, rtol=1e-11, atol=1e-11)


@kernels
def test_derivatives(name):
    kernel, inputs, X = make(name), points(3, seed=0), points(2, seed=1)

    def function(inputs, X):
        return radial_between(inputs, kernel(X))[0]

    at = inputs.requires_grad_(), X.requires_grad_()
    assert gradcheck(function, at, atol=1e-7)
    assert gradgradcheck(function, at, atol=1e-6)


@kernels
def test_second_derivatives_at_equal_points(name):
    X = points(3, seed=0).requires_grad_()
    total = radial_between(X.detach(), make(name)(X))[0].sum()
    (gradient,) = torch.autograd.grad(total, X, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), X)
    assert second.isfinite().all()
    if name == "rbf":
        kernel, inputs = make(name), X.detach()
        (first,) = torch.autograd.grad(kernel(inputs, X).to_dense().sum(), X, create_graph=True)
        assert_close(second, torch.autograd.grad(first.sum(), X)[0], rtol=1e-9, atol=1e-9)


@kernels
def test_single_precision(name):
    inputs, X = (points(5, seed=seed, dtype=torch.float32) for seed in (0, 1))
    kernel = make(name, dtype=torch.float32)
    got, _ = radial_between(inputs, kernel(X.requires_grad_()))
    assert got.dtype == torch.float32
    assert_close(got, kernel(inputs, X).to_dense(), rtol=1e-5, atol=1e-6)


def test_what_it_leaves_to_gpytorch():
    class Custom(MaternKernel):
        pass

    others = [
        MaternKernel(nu=0.5),
        Custom(nu=2.5),
        ScaleKernel(make("rbf")),
        RBFKernel(active_dims=[0, 1]),
        MaternKernel(nu=2.5, ard_num_dims=3, batch_shape=torch.Size([2])),
    ]
    for kernel in others:
        assert radial_between(points(5, seed=0), kernel.double()(points(4, seed=1))) is None
