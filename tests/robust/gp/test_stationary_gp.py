"""Caches of the closed form, and its map of inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize
from botorch.models.transforms.input import (
    AffineInputTransform,
    ChainedInputTransform,
    InputStandardize,
)
from gpytorch.kernels import MaternKernel, ScaleKernel
from torch import Tensor
from torch.testing import assert_close

from botorch_calib.acquisition import WassersteinUpperConfidenceBound
from botorch_calib.robust import ClosedFormConfidenceBound
from botorch_calib.robust.gp.stationary_gp import is_stationary, stationary_gp
from botorch_calib.robust.joint_inputs import Columns

DOUBLE: dict[str, Any] = {"dtype": torch.double}
BETA = 2.25
COLUMNS = Columns(4, 2)
STEPS = torch.tensor([0.5, 2.0, 1.0, 4.0], **DOUBLE)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    """Multiples of 2^-20, such that adding a large power of 2 does not round."""
    draws = torch.rand(*shape, **DOUBLE, generator=torch.Generator().manual_seed(seed))
    return (draws * 2**20).round() / 2**20


TRANSFORMS: dict[str, Callable[[Tensor], Any]] = {
    "none": lambda offset: None,
    "normalize": lambda offset: Normalize(4),
    "some columns": lambda offset: Normalize(4, indices=[0, 3]),
    "off center": lambda offset: Normalize(4, bounds=offset + torch.stack([-STEPS, STEPS])),
    "standardize": lambda offset: InputStandardize(4),
    "only in training": lambda offset: InputStandardize(4, transform_on_eval=False),
    "only in evaluation": lambda offset: AffineInputTransform(
        4, STEPS, offset, transform_on_train=False
    ),
    "affine": lambda offset: AffineInputTransform(4, STEPS, offset),
    "backwards": lambda offset: AffineInputTransform(4, STEPS, -offset * STEPS, reverse=True),
    "negative": lambda offset: AffineInputTransform(4, -STEPS, offset),
    "a constant column": lambda offset: AffineInputTransform(
        4, STEPS * torch.tensor([1.0, 0.0, 1.0, 1.0]), -offset * STEPS, reverse=True
    ),
    "chain": lambda offset: ChainedInputTransform(
        first=AffineInputTransform(4, STEPS, offset),
        never=Normalize(4, transform_on_train=False, transform_on_eval=False),
        last=InputStandardize(4, indices=[1, 2]),
    ),
}


def make_gp(transform: Any = None, offset: float = 0.0, fixed_noise: bool = False) -> Any:
    U = uniform(15, 4)
    Y = (4 * U + torch.arange(4)).sin().sum(dim=-1, keepdim=True)
    Y = (Y - Y.mean()) / Y.std()
    gp = SingleTaskGP(
        offset + U,
        Y,
        train_Yvar=torch.full_like(Y, 0.01) if fixed_noise else None,
        covar_module=ScaleKernel(MaternKernel(nu=2.5, ard_num_dims=4)),
        input_transform=transform,
        outcome_transform=None,
    )
    gp.covar_module.base_kernel.lengthscale = torch.tensor([0.5, 0.7, 0.9, 1.1], **DOUBLE)
    if not fixed_noise:
        gp.likelihood.noise = 1e-2
    return gp.eval()


def bound_of(gp: Any) -> ClosedFormConfidenceBound:
    return ClosedFormConfidenceBound(stationary_gp(gp), COLUMNS, BETA)


def posterior_bound(gp: Any, X: Tensor, C: Tensor) -> Tensor:
    """The bound at each pair separately, from the model's posterior."""
    Z = torch.stack([torch.cat([x, c]) for x in X for c in C]).unsqueeze(-2)
    posterior = gp.posterior(Z)
    return (posterior.mean + 1.5 * posterior.variance.sqrt()).view(len(X), len(C))


class TestInputs:
    @pytest.mark.parametrize("name", TRANSFORMS)
    def test_transforms(self, name):
        gp = make_gp(TRANSFORMS[name](torch.full((4,), 3.0, **DOUBLE)), offset=3.0)
        X, C = (3.0 + uniform(4, 2, seed=seed) for seed in (1, 2))
        X.requires_grad_()
        values, expected = bound_of(gp)(X, C), posterior_bound(gp, X, C)
        assert_close(values, expected, rtol=0, atol=1e-9)
        for got, wanted in zip(
            torch.autograd.grad(values.square().sum(), X),
            torch.autograd.grad(expected.square().sum(), X),
            strict=True,
        ):
            assert_close(got, wanted, rtol=1e-8, atol=1e-8)

    @pytest.mark.parametrize("name", ["normalize", "chain"])
    def test_far_from_zero(self, name):
        """A unit cube at 2^30, where the inputs are exact: differences are taken first."""
        offset = 2.0**30
        gp = make_gp(TRANSFORMS[name](torch.full((4,), offset, **DOUBLE)), offset)
        X, C = (offset + uniform(4, 2, seed=seed) for seed in (1, 2))
        assert_close(bound_of(gp)(X, C), posterior_bound(gp, X, C), rtol=0, atol=1e-9)

    def test_one_outcome_of_several(self):
        """BoTorch stores raw inputs that still have a dimension of outcomes."""
        U = uniform(15, 4)
        Y = torch.cat([U.sin().sum(dim=-1, keepdim=True), U.cos().sum(dim=-1, keepdim=True)], -1)
        Y = (Y - Y.mean(dim=0)) / Y.std(dim=0)
        gp = SingleTaskGP(U, Y, input_transform=Normalize(4), outcome_transform=None).eval()
        X, C = (uniform(4, 2, seed=seed) for seed in (1, 2))
        for i in range(2):
            one = gp.subset_output([i])
            assert_close(bound_of(one)(X, C), posterior_bound(one, X, C), rtol=0, atol=1e-9)

    def test_other_rows(self):
        """A transform that differs by row is not one of single inputs."""
        rows = AffineInputTransform(4, torch.ones(15, 4, **DOUBLE), torch.rand(15, 4, **DOUBLE))
        assert not is_stationary(make_gp(rows))


def refit(gp: Any) -> None:
    inputs, targets = uniform(9, 4, seed=8), uniform(9, seed=9)
    gp.train()
    gp.set_train_data(inputs, (targets - targets.mean()) / targets.std(), strict=False)
    gp.eval()


def other_bounds(gp: Any) -> None:
    gp.train()
    gp.input_transform._coefficient.data.mul_(1.5)
    gp.eval()


def other_kernel(gp: Any) -> None:
    """With the same hyperparameters."""
    kernel = MaternKernel(nu=1.5, ard_num_dims=4).double()
    kernel.lengthscale = gp.covar_module.base_kernel.lengthscale.detach()
    gp.train()
    gp.covar_module.base_kernel = kernel
    gp.eval()


def targets_in_place(gp: Any) -> None:
    gp.train()
    gp.train_targets.mul_(2.0)
    gp.eval()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "lengthscale": lambda gp: setattr(gp.covar_module.base_kernel, "lengthscale", 0.3),
    "outputscale": lambda gp: setattr(gp.covar_module, "outputscale", 2.0),
    "noise": lambda gp: setattr(gp.likelihood, "noise", 0.3),
    "fixed noise": lambda gp: setattr(gp.likelihood, "noise", torch.full((15,), 0.5, **DOUBLE)),
    "kernel": other_kernel,
    "targets": targets_in_place,
    "mean": lambda gp: gp.mean_module.constant.data.add_(1.0),
    "data": refit,
    "bounds": other_bounds,
    "dtype": lambda gp: gp.float().double(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_model(change):
    """After a change of the model, an evaluated acquisition function equals a new one."""
    bounds = torch.tensor([[-1.0] * 4, [3.0] * 4], **DOUBLE)
    gp = make_gp(Normalize(4, bounds=bounds), fixed_noise=change == "fixed noise")
    C, others = uniform(5, 2, seed=2), uniform(7, 2, seed=3)

    def build() -> WassersteinUpperConfidenceBound:
        return WassersteinUpperConfidenceBound(gp, 2.25, 0.3, C, lipschitz_contexts=others)

    def evaluated(acquisition: Any) -> tuple[Tensor, Tensor]:
        X = uniform(4, 1, 2, seed=1).requires_grad_()
        values = acquisition(X)
        return values.detach(), torch.autograd.grad(values.sum(), X)[0]

    acquisition = build()
    before = evaluated(acquisition)
    CHANGES[change](gp)
    after, fresh = evaluated(acquisition), evaluated(build())
    for old, got, wanted in zip(before, after, fresh, strict=True):
        assert_close(got, wanted, rtol=1e-12, atol=1e-12)
        assert not torch.equal(got, old)
