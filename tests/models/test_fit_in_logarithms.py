"""Fits in logarithms end where BoTorch's do, or higher, after fewer evaluations."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from botorch.models.utils.gpytorch_modules import get_matern_kernel_with_gamma_prior
from botorch.optim.closures import get_loss_closure_with_grads
from botorch.optim.utils import get_parameters
from botorch.utils.sampling import draw_sobol_samples
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from linear_operator.utils.errors import NotPSDError
from torch import Tensor

from botorch_calib.models.fit_in_logarithms import SECOND_NOISE, fit_in_logarithms

SQUARE = torch.tensor([[0.0, 0.0], [1.0, 1.0]], dtype=torch.double)


def data(n: int, noise: float, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Values of a function of the first input, with noise."""
    X = draw_sobol_samples(SQUARE, n=n, q=1, seed=seed).squeeze(-2)
    generator = torch.Generator().manual_seed(seed)
    Y = (3.0 * X[:, :1]).sin() + X[:, 1:].square()
    return X, Y + noise * torch.randn(n, 1, dtype=torch.double, generator=generator)


def fitted(gp: Any, **options: Any) -> tuple[float, int]:
    """The log marginal likelihood with its priors, for each datum, and the evaluations."""
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    inner = get_loss_closure_with_grads(mll, get_parameters(mll, requires_grad=True))
    num = 0

    def closure() -> Any:
        nonlocal num
        num += 1
        return inner()

    fit_gpytorch_mll(mll, closure=closure, **options)
    assert not gp.training
    mll.train()
    with torch.no_grad():
        return mll(gp(*gp.train_inputs), gp.train_targets).item(), num


def test_the_same_maximum_in_a_third_of_the_evaluations() -> None:
    X, Y = data(24, noise=0.01)
    models = [SingleTaskGP(X, Y, outcome_transform=Standardize(1)) for _ in range(2)]
    (theirs, slow) = fitted(models[0])
    (ours, fast) = fitted(models[1], optimizer=fit_in_logarithms, optimizer_kwargs={"twice": False})
    assert fast < 0.5 * slow
    assert ours == pytest.approx(theirs, abs=1e-6)
    for name, value in models[0].state_dict().items():
        torch.testing.assert_close(models[1].state_dict()[name], value, rtol=5e-3, atol=5e-3)


def test_the_better_one_of_two_maxima() -> None:
    """Where a search takes noise for signal, or all for noise, another one finds more."""
    settings: list[dict[str, Any]] = [
        {"optimizer": fit_in_logarithms},
        {"optimizer": fit_in_logarithms, "optimizer_kwargs": {"twice": False}},
        {},
    ]
    found = []
    for seed in range(6):
        X, Y = data(20, 0.3, seed)
        models = (SingleTaskGP(X, Y, outcome_transform=Standardize(1)) for _ in settings)
        found.append(
            [20 * fitted(gp, **each)[0] for gp, each in zip(models, settings, strict=True)]
        )
    twice, once, theirs = torch.tensor(found, dtype=torch.double).unbind(dim=-1)
    assert (twice - once).min() > -1e-3 and (twice - once).max() > 0.5
    assert (twice - theirs).min() > -1e-3 and (twice - theirs).max() > 5.0


def test_parameters_with_a_transform_and_frozen_ones_are_left_as_they_are() -> None:
    X, Y = data(16, noise=0.1)
    models: list[Any] = [
        SingleTaskGP(
            X,
            Y,
            torch.full_like(Y, 0.01),
            covar_module=get_matern_kernel_with_gamma_prior(2),
            outcome_transform=Standardize(1),
        )
        for _ in range(2)
    ]
    for gp in models:
        gp.mean_module.raw_constant.requires_grad_(False)
    (theirs, slow), (ours, fast) = (
        fitted(gp, **options)
        for gp, options in zip(models, ({}, {"optimizer": fit_in_logarithms}), strict=True)
    )
    # Nothing has positive bounds: it is BoTorch's search.
    assert (ours, fast) == (theirs, slow)
    assert models[1].mean_module.constant == 0.0


def test_single_precision() -> None:
    X, Y = (each.float() for each in data(16, noise=0.1))
    gp: Any = SingleTaskGP(X, Y, outcome_transform=Standardize(1))
    fitted(gp, optimizer=fit_in_logarithms)
    assert gp.likelihood.noise.dtype is torch.float
    double: Any = SingleTaskGP(X.double(), Y.double(), outcome_transform=Standardize(1))
    fitted(double, optimizer=fit_in_logarithms)
    torch.testing.assert_close(
        gp.likelihood.noise.double(), double.likelihood.noise, rtol=0.1, atol=0.0
    )


@pytest.mark.parametrize("failure", ["not_psd", "nan"])
def test_a_second_search_that_fails_leaves_the_first(failure: str) -> None:
    X, Y = data(16, noise=0.1)
    models: list[Any] = [SingleTaskGP(X, Y, outcome_transform=Standardize(1)) for _ in range(2)]
    once, _ = fitted(models[0], optimizer=fit_in_logarithms, optimizer_kwargs={"twice": False})
    gp = models[1]
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    inner = get_loss_closure_with_grads(mll, get_parameters(mll, requires_grad=True))
    fails, refused = False, 0

    def closure() -> Any:
        nonlocal fails, refused
        fails = fails or abs(gp.likelihood.noise.item() / SECOND_NOISE - 1.0) < 1e-12
        if not fails:
            return inner()
        refused += 1
        if failure == "not_psd":
            raise NotPSDError("not positive definite")
        loss, gradients = inner()
        return loss * torch.nan, gradients

    fit_gpytorch_mll(mll, closure=closure, optimizer=fit_in_logarithms, max_attempts=1)
    assert refused
    mll.train()
    with torch.no_grad():
        assert mll(gp(*gp.train_inputs), gp.train_targets).item() == pytest.approx(once, abs=1e-12)


def test_a_bound_of_each_lengthscale() -> None:
    X, Y = data(24, noise=0.1)
    least = torch.tensor([[0.5, 0.1]], dtype=torch.double)
    values = []
    for options in ({}, {"optimizer": fit_in_logarithms, "optimizer_kwargs": {"twice": False}}):
        kernel = RBFKernel(
            ard_num_dims=2,
            lengthscale_constraint=GreaterThan(least, transform=None, initial_value=2.0 * least),
        )
        gp = SingleTaskGP(X, Y, covar_module=kernel.double(), outcome_transform=Standardize(1))
        value, _ = fitted(gp, **options)
        assert (kernel.lengthscale > least * (1.0 - 1e-9)).all()
        values.append(value)
    assert values[1] == pytest.approx(values[0], abs=1e-5)
