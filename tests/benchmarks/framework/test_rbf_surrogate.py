"""The fast RBF surrogate: its objective and gradient, and that fits find maxima."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from botorch.models import SingleTaskGP
from gpytorch.mlls import ExactMarginalLogLikelihood
from scipy.optimize import approx_fprime
from scipy.stats import multivariate_normal
from torch import Tensor

from benchmarks.framework.rbf_surrogate import (
    LogPosterior,
    RawLogLikelihood,
    RawRBF,
    RefittedRBF,
    best_hyperparameters,
    fit_rbf_gp,
    hyperparameters,
    rbf_gp,
)


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


def test_short_lengthscales_are_found() -> None:
    # Five periods of a sine, which a long lengthscale can only call noise.
    X = np.linspace(0.0, 1.0, 60)[:, None]
    y = np.sin(2 * math.pi * X[:, 0] / 0.2)
    found = best_hyperparameters(X, y / y.std(ddof=1))
    assert found.lengthscales[0] < 0.2
    assert found.noise < 0.01


def test_hyperparameters_are_fitted_every_tenth_step(data) -> None:
    X, Y, bounds = data
    surrogate = RefittedRBF()
    first = surrogate(X[:10], Y[:10], bounds, 0, None)
    between = surrogate(X[:20], Y[:20], bounds, 9, first)
    assert hyperparameters(between) == hyperparameters(first)
    assert len(between.train_targets) == 20
    tenth = surrogate(X[:20], Y[:20], bounds, 10, between)
    assert hyperparameters(tenth) != hyperparameters(first)


# ------------------------------------------------------------ zero mean, raw outcomes, no priors


def test_raw_log_likelihood_by_the_density(data) -> None:
    X, Y, _ = data
    unit, y = ((X + 2) / 4).numpy(), Y.squeeze(-1).numpy()
    value, _ = RawLogLikelihood(unit, y)(np.log([0.4, 1.3, 0.02]))
    squares = ((unit[:, None] - unit) ** 2).sum(axis=-1)
    covariance = 1.3 * np.exp(-0.5 * squares / 0.4**2) + 0.02 * np.eye(len(y))
    density = multivariate_normal(np.zeros(len(y)), covariance).logpdf(y)
    assert value == pytest.approx(-density, rel=1e-9)


def test_gradient_of_raw_log_likelihood(data) -> None:
    X, Y, _ = data
    own = RawLogLikelihood(((X + 2) / 4).numpy(), Y.squeeze(-1).numpy())
    at = np.log([0.4, 1.3, 0.02])
    differences = approx_fprime(at, lambda p: own(p)[0], 1e-7)
    assert own(at)[1] == pytest.approx(differences, rel=1e-4, abs=1e-4)


def test_raw_process_is_fitted_to_outcomes_as_they_are(data) -> None:
    X, Y, bounds = data
    surrogate = RawRBF()
    gp = surrogate(X[:20], Y[:20], bounds, 0, None)
    found = hyperparameters(gp)
    assert found.mean == 0.0 and len(set(found.lengthscales)) == 1
    assert torch.equal(gp.train_targets, Y[:20, 0])
    own = RawLogLikelihood(((X[:20] + 2) / 4).numpy(), Y[:20, 0].numpy())
    at = np.log([found.lengthscales[0], found.outputscale, found.noise])
    inside = np.exp(at) < np.array([20.0, 100.0, 10.0]) * 0.999
    assert abs(own(at)[1][inside]).max() < 0.01
    between = surrogate(X, Y, bounds, 9, gp)
    assert hyperparameters(between) == found and torch.equal(between.train_targets, Y[:, 0])
    # Far from the data it goes back to zero, and not to their mean of about 5.
    with torch.no_grad():
        far = gp.posterior(torch.full((1, 2), 1e3, dtype=torch.double)).mean
    assert far.item() == pytest.approx(0.0, abs=1e-9)
