"""The fast RBF surrogate: its objective and gradient, and that fits find maxima."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.optimize import approx_fprime
from torch import Tensor

from benchmarks.framework.rbf_surrogate import LogPosterior, fit_rbf_gp, hyperparameters, rbf_gp


@pytest.fixture(scope="module")
def data() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(25, 2, dtype=torch.double, generator=generator) * 4 - 2
    Y = 5 + torch.sin(3 * X).sum(dim=-1, keepdim=True)
    Y = Y + 0.1 * torch.randn(25, 1, dtype=torch.double, generator=generator)
    return X, Y, torch.tensor([[-2.0, -2.0], [2.0, 2.0]], dtype=torch.double)


def log_posterior(gp: SingleTaskGP) -> float:
    """GPyTorch's, which it divides by the number of points."""
    gp.train()
    mll = ExactMarginalLogLikelihood(gp.likelihood, gp)
    return mll(gp(*gp.train_inputs), gp.train_targets).item() * len(gp.train_targets)


def parameters(gp: SingleTaskGP) -> np.ndarray:
    found = hyperparameters(gp)
    return np.log([*found.lengthscales, found.outputscale, found.noise])


def test_log_posterior_is_that_of_gpytorch(data) -> None:
    X, Y, bounds = data
    gp = fit_rbf_gp(X, Y, bounds)
    own = LogPosterior(((X + 2) / 4).numpy(), gp.train_targets.numpy())
    # GPyTorch keeps the parameters of priors in single precision, 0.15 within 6e-9.
    assert -own(parameters(gp))[0] == pytest.approx(log_posterior(gp), abs=1e-6)
    # Any other mean is worse, so the gradient by it is zero.
    gp.mean_module.constant.data += 0.01
    assert log_posterior(gp) < -own(parameters(gp))[0]


def test_gradient_of_log_posterior(data) -> None:
    X, Y, bounds = data
    own = LogPosterior(((X + 2) / 4).numpy(), rbf_gp(X, Y, bounds).train_targets.numpy())
    at = np.log([0.4, 0.7, 1.3, 0.02])
    differences = approx_fprime(at, lambda p: own(p)[0], 1e-7)
    assert own(at)[1] == pytest.approx(differences, rel=1e-4, abs=1e-4)


def test_fit_finds_a_maximum(data) -> None:
    X, Y, bounds = data
    gp = fit_rbf_gp(X, Y, bounds)
    own = LogPosterior(((X + 2) / 4).numpy(), gp.train_targets.numpy())
    assert abs(own(parameters(gp))[1]).max() < 0.01
    assert not any(p.requires_grad for p in gp.parameters())
    # Started from itself with another start or without, it stays.
    again = hyperparameters(fit_rbf_gp(X, Y, bounds, previous=gp))
    assert again.lengthscales == pytest.approx(hyperparameters(gp).lengthscales, rel=0.01)
