"""The Matern kernel between two sets of points: against GPyTorch's, with all derivatives."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from botorch_calib.models.matern import matern_between


def points(num: int, seed: int, dtype: torch.dtype = torch.double) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(num, 3, generator=generator, dtype=torch.double).to(dtype)


def matern(dtype: torch.dtype = torch.double) -> ScaleKernel:
    kernel = ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=3)).to(dtype)
    kernel.base_kernel.lengthscale = torch.tensor([[0.2, 1.5, 0.7]], dtype=dtype)
    kernel.outputscale = 2.3
    return kernel


@pytest.mark.parametrize("num", [4, 40])  # GPyTorch's distances of many points are products
@pytest.mark.parametrize("scaled", [True, False])
def test_against_gpytorch(num, scaled):
    kernel = matern() if scaled else matern().base_kernel
    inputs, X = points(num, 0), points(num, 1)
    X[0], X[1] = inputs[0], inputs[1] + 1e-7
    X.requires_grad_()
    weight = torch.randn(num, num, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    got, expected = matern_between(inputs, kernel(X)), kernel(inputs, X).to_dense()
    assert got is not None
    assert_close(got, expected, rtol=1e-13, atol=1e-14)
    wanted = [X, *kernel.parameters()]
    found = zip(
        torch.autograd.grad(got, wanted, weight),
        torch.autograd.grad(expected, wanted, weight),
        strict=True,
    )
    for a, b in found:
        assert_close(a, b, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("num", [3, 30])
def test_derivatives(num):
    kernel, inputs, X = matern(), points(num, 0), points(2, 1).requires_grad_()

    def function(X):
        return matern_between(inputs, kernel(X))

    assert gradcheck(function, (X,), atol=1e-7)
    assert gradgradcheck(function, (X,), atol=1e-6)


def test_single_precision():
    inputs, X = points(5, 0, torch.float32), points(4, 1, torch.float32).requires_grad_()
    kernel = matern(torch.float32)
    got = matern_between(inputs, kernel(X))
    assert got.dtype == torch.float32
    assert_close(got, kernel(inputs, X).to_dense(), rtol=1e-5, atol=1e-6)


def test_what_it_leaves_to_gpytorch():
    class Custom(MaternKernel):
        pass

    batch = MaternKernel(nu=2.5, ard_num_dims=3, batch_shape=torch.Size([2]))
    kernels = [MaternKernel(nu=1.5), RBFKernel(), Custom(nu=2.5), ScaleKernel(matern()), batch]
    for kernel in kernels:
        assert matern_between(points(5, 0), kernel.double()(points(4, 1))) is None
