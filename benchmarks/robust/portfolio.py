r"""A portfolio's return, with normal and with uniform contexts, from published evaluations.

The two portfolio problems of Huang et al. (2024), which Micheli et al. (2025) take over. The
simulator is that of Cakmak et al. (2020). Its values at 3000 points of the unit cube are public,
and a problem is the posterior mean of a Gaussian process that is fitted to them. The first three
inputs are decisions (aversion to risk, aversion to trades, multiplier of holding costs), the
last two are contexts (bid-ask spread, cost of borrowing). The stored values are negated returns.

The evaluations are not ours to ship: ``BOTORCH_CALIB_PORTFOLIO`` names the folder with the files
``port_n=100_seed=1`` to ``port_n=100_seed=30``, of ``Benchmark/port_evals`` in
github.com/lamda-bbo/sbokde.

The papers say nothing of the process. In the code of Micheli et al. it is BoTorch's default one
for standardised values, a squared-exponential kernel with a lengthscale for each input, and so it
is here; in that of Huang et al. it is a Matern process. Hyperparameters are those of `refit` on the
first 1000 points. Normal contexts are N(0.5, 0.2^2), clipped to [0, 1], as Micheli et al. state;
the code of Huang et al. has 0.1. The kernel is a product over inputs, so expectations over contexts
are products of one-dimensional ones, by Gauss-Legendre quadrature, exact to rounding. (The codes
average over 2048 and 65536 quasi-random contexts, and round the optima, to 19 and 21 and to 20 and
22 for uniform and normal contexts.)
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.models.transforms import Standardize
from gpytorch.constraints import GreaterThan
from gpytorch.likelihoods import GaussianLikelihood
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from botorch_calib.test_functions.contextual import ClippedNormal, ContextualProblem

PORTFOLIO_VARIABLE = "BOTORCH_CALIB_PORTFOLIO"
NUM_FILES = 30

# Of standardised values, by `refit`.
LENGTHSCALES = (0.1406, 2.704, 0.1273, 0.2442, 1.031)
NOISE_VARIANCE = 0.00611
CONSTANT_MEAN = 0.6131

# Of the quadrature over one context.
NUM_NODES = 64


@functools.cache
def evaluations(folder: str) -> tuple[Tensor, Tensor]:
    """The points, ``n x 5`` in the unit cube, and the returns, ``n``."""
    files = [Path(folder) / f"port_n=100_seed={number}" for number in range(1, NUM_FILES + 1)]
    found = [torch.load(file, weights_only=True) for file in files]
    X = torch.cat([each["X"].reshape(-1, 5) for each in found]).double()
    return X, -torch.cat([each["Y"].flatten() for each in found]).double()


def folder_of_evaluations() -> str:
    """The folder that the environment names."""
    folder = os.environ.get(PORTFOLIO_VARIABLE)
    if folder is None:
        raise OSError(
            f"Set {PORTFOLIO_VARIABLE} to a folder with the published evaluations: "
            "`Benchmark/port_evals` of github.com/lamda-bbo/sbokde."
        )
    return folder


def unfitted(X: Tensor, y: Tensor) -> SingleTaskGP:
    """The process of Micheli et al. for ``n x 5`` points and ``n`` returns."""
    noise = GaussianLikelihood(
        noise_prior=GammaPrior(1.1, 0.5), noise_constraint=GreaterThan(5e-6, transform=None)
    )
    return SingleTaskGP(X, y.unsqueeze(-1), likelihood=noise, outcome_transform=Standardize(1))


def refit(X: Tensor, y: Tensor) -> SingleTaskGP:
    """`unfitted`, fitted."""
    gp = unfitted(X, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(gp.likelihood, gp))
    return gp


def kernel(first: Tensor, second: Tensor) -> Tensor:
    """``exp(-|a - b|^2 / 2)`` of points in units of the lengthscales, ``... n x d``, ``m x d``."""
    distance = torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
    return torch.exp(-0.5 * distance.square())


@functools.cache
def weights_of_mean(folder: str) -> tuple[Tensor, Tensor, float]:
    """Points in units of the lengthscales and their weights in the mean, and its constant."""
    X, y = evaluations(folder)
    points = X / X.new_tensor(LENGTHSCALES)
    mean, scale = y.mean().item(), y.std().item()
    covariance = kernel(points, points) + NOISE_VARIANCE * torch.eye(len(y), dtype=y.dtype)
    residual = ((y - mean) / scale - CONSTANT_MEAN).unsqueeze(-1)
    weights = torch.cholesky_solve(residual, torch.linalg.cholesky(covariance)).squeeze(-1)
    return points, scale * weights, mean + scale * CONSTANT_MEAN


class PortfolioNormal(ContextualProblem):
    """The return in percent, with contexts from N(0.5, 0.2^2), clipped to [0, 1]."""

    num_decisions = 3
    _is_minimization_by_default = False
    _bounds = [(0.0, 1.0)] * 5
    _normal = ClippedNormal(0.5, 0.2)
    _icdfs = (_normal.icdf,) * 2
    _points: Tensor
    _weights: Tensor
    _expected_weights: Tensor
    _stochastic_optimum = 20.27983191939962
    _stochastic_optimizer = (0.0, 1.0, 0.08516793631251762)

    def _prepare(self) -> None:
        points, weights, self._constant = weights_of_mean(folder_of_evaluations())
        self.register_buffer("_points", points)
        self.register_buffer("_weights", weights)
        # A context's kernel in expectation, for each point
        nodes, masses = self._rule()
        for column in range(self.num_decisions, self.dim):
            scaled = nodes.unsqueeze(-1) / LENGTHSCALES[column]
            weights = weights * (masses @ kernel(scaled, points[:, column : column + 1]))
        self.register_buffer("_expected_weights", weights)

    def _rule(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights of the quadrature over one context."""
        return self._normal.rule((0.0, 1.0), NUM_NODES)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return self._mean(X, self._weights)

    def _expectation(self, X: Tensor) -> Tensor:
        return self._mean(X, self._expected_weights)

    def _mean(self, X: Tensor, weights: Tensor) -> Tensor:
        width = X.shape[-1]
        scaled = X / X.new_tensor(LENGTHSCALES[:width])
        flat = kernel(scaled.reshape(-1, width), self._points[:, :width].to(X))
        return (self._constant + flat @ weights.to(X)).reshape(X.shape[:-1])


class PortfolioUniform(PortfolioNormal):
    """The return in percent, with uniform contexts."""

    _icdfs = (lambda u: u,) * 2
    _stochastic_optimum = 18.4758197136127
    _stochastic_optimizer = (0.0, 1.0, 0.09977956437886883)

    def _rule(self) -> tuple[Tensor, Tensor]:
        nodes, weights = np.polynomial.legendre.leggauss(NUM_NODES)
        return torch.from_numpy((nodes + 1.0) / 2.0), torch.from_numpy(weights / 2.0)
