"""Gaussian processes under delayed feedback: squared-exponential, hyperparameters fitted fast.

Suite `delay` fits some ten thousand times. The marginal likelihood and its gradient are therefore
written out here, which is several times faster than differentiating through GPyTorch; what is
maximised is the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.priors import GammaPrior
from scipy.linalg import cho_factor
from scipy.linalg.lapack import dpotri
from scipy.optimize import minimize
from torch import Tensor

from benchmarks.framework.surrogates import Refitted, with_data

# Shape and rate of the gamma priors that BoTorch long gave its Matern kernel by default, and
# location and scale of the log-normal one that it gives the noise variance. Without priors a
# handful of points is often explained as nothing but noise.
LENGTHSCALE_PRIOR, OUTPUTSCALE_PRIOR, NOISE_PRIOR = (3.0, 6.0), (2.0, 0.15), (-4.0, 1.0)
LENGTHSCALE_RANGE, OUTPUTSCALE_RANGE, NOISE_RANGE = (5e-3, 20.0), (1e-2, 100.0), (1e-4, 10.0)
# Short and long lengthscales can have a maximum each, so a fit starts from both, as long as it
# costs little; with more points than this, it starts from the last fit alone.
FIRST_LENGTHSCALES = (0.3, 0.03)
MAX_POINTS_MANY_STARTS = 150


@dataclass(frozen=True)
class Hyperparameters:
    """Of the process on the unit cube, for standardised outcomes."""

    lengthscales: tuple[float, ...]
    outputscale: float
    noise: float
    mean: float


@dataclass(frozen=True)
class RefittedRBF(Refitted):
    """A squared-exponential GP with one lengthscale for each input, fitted every tenth round."""

    every: int = 10

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        if previous is None or step % self.every == 0:
            return self.fit(X, Y, bounds, previous)
        return with_data(previous, X, Y)

    def fit(
        self, X: Tensor, Y: Tensor, bounds: Tensor, previous: SingleTaskGP | None = None
    ) -> SingleTaskGP:
        return fit_rbf_gp(X, Y, bounds, previous)


def fit_rbf_gp(
    X: Tensor,
    Y: Tensor,
    bounds: Tensor,
    previous: SingleTaskGP | None = None,
) -> SingleTaskGP:
    """Fit a squared-exponential Gaussian process by its marginal likelihood and weak priors.

    Args:
        X: Points, ``n x d``.
        Y: Outcomes, ``n x 1``.
        bounds: The box, ``2 x d``.
        previous: A fitted one, whose hyperparameters are a further start.
    """
    gp = rbf_gp(X, Y, bounds)
    unit = ((X - bounds[0]) / (bounds[1] - bounds[0])).numpy()
    found = best_hyperparameters(
        unit,
        gp.train_targets.numpy(),
        None if previous is None else hyperparameters(previous),
    )
    set_hyperparameters(gp, found)
    return gp.requires_grad_(False)


def rbf_gp(X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
    """The process before it is fitted: arguments as for `fit_rbf_gp`."""
    kernel = ScaleKernel(
        RBFKernel(ard_num_dims=X.shape[-1], lengthscale_prior=GammaPrior(*LENGTHSCALE_PRIOR)),
        outputscale_prior=GammaPrior(*OUTPUTSCALE_PRIOR),
    )
    return SingleTaskGP(
        X,
        Y,
        covar_module=kernel,
        input_transform=Normalize(X.shape[-1], bounds=bounds),
        outcome_transform=Standardize(1),
    )


def set_hyperparameters(gp: SingleTaskGP, found: Hyperparameters) -> None:
    """Set those of a GP made by `rbf_gp`."""
    gp.covar_module.base_kernel.lengthscale = torch.tensor(found.lengthscales).to(gp.train_targets)
    gp.covar_module.outputscale = found.outputscale
    gp.likelihood.noise = found.noise
    gp.mean_module.constant.data.fill_(found.mean)


def hyperparameters(gp: SingleTaskGP) -> Hyperparameters:
    """Those of a GP made by `rbf_gp`."""
    return Hyperparameters(
        tuple(gp.covar_module.base_kernel.lengthscale.flatten().tolist()),
        gp.covar_module.outputscale.item(),
        gp.likelihood.noise.item(),
        gp.mean_module.constant.item(),
    )


def best_hyperparameters(
    X: np.ndarray,
    y: np.ndarray,
    previous: Hyperparameters | None = None,
) -> Hyperparameters:
    """The best of the maxima found from several starts.

    Args:
        X: Points of the unit cube, ``n x d``.
        y: Outcomes in the units of the process, ``n``.
        previous: A further start.
    """
    posterior = LogPosterior(X, y)
    free = X.shape[1]
    ranges = np.array([*[LENGTHSCALE_RANGE] * free, OUTPUTSCALE_RANGE, NOISE_RANGE])
    starts = []
    if previous is not None:
        starts.append([*previous.lengthscales, previous.outputscale, previous.noise])
    if previous is None or len(y) <= MAX_POINTS_MANY_STARTS:
        noise = math.exp(NOISE_PRIOR[0])
        starts += [[*[first] * free, 1.0, noise] for first in FIRST_LENGTHSCALES]
    found = [
        minimize(
            posterior,
            np.log(np.clip(start, *ranges.T)),
            jac=True,
            method="L-BFGS-B",
            bounds=np.log(ranges),
        )
        for start in starts
    ]
    best = min(found, key=lambda result: float(result.fun)).x
    *lengthscales, outputscale, noise = np.exp(best).tolist()
    return Hyperparameters(tuple(lengthscales), outputscale, noise, posterior.mean(best))


class LogPosterior:
    """Minus the log marginal likelihood and log priors, and its gradient.

    Parameters are the logarithms of the lengthscales, the outputscale and the noise variance, in
    this order. The constant mean is at its maximum for each of them, the generalised
    least-squares estimate, and so adds nothing to the gradient.

    Args:
        X: Points of the unit cube, ``n x d``.
        y: Standardised outcomes, ``n``.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray) -> None:
        self.squares = (X.T[:, :, None] - X.T[:, None, :]) ** 2
        self.y = y

    def __call__(self, parameters: np.ndarray) -> tuple[float, np.ndarray]:
        lengthscales, outputscale, noise = self._split(parameters)
        kernel, factor = self._factorise(parameters)
        inverse = _inverse(factor)
        residual = self.y - self._mean(inverse)
        alpha = inverse @ residual
        log_likelihood = -0.5 * residual @ alpha - np.log(np.diag(factor)).sum()
        log_likelihood -= 0.5 * len(self.y) * math.log(2 * math.pi)
        # Of the log likelihood by the covariance matrix.
        by_covariance = 0.5 * (np.outer(alpha, alpha) - inverse)
        by_kernel = by_covariance * kernel
        slopes = np.tensordot(self.squares, by_kernel, axes=2) / lengthscales**2
        gradient = np.array([*slopes, by_kernel.sum(), noise * np.trace(by_covariance)])
        log_prior, prior_gradient = _log_priors(lengthscales, outputscale, noise)
        return -float(log_likelihood + log_prior), -(gradient + prior_gradient)

    def mean(self, parameters: np.ndarray) -> float:
        """The constant mean at its maximum."""
        return self._mean(_inverse(self._factorise(parameters)[1]))

    def _mean(self, inverse: np.ndarray) -> float:
        weights = inverse.sum(axis=0)
        return float(weights @ self.y / weights.sum())

    def _factorise(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The kernel matrix, and the lower Cholesky factor of that of the outcomes."""
        lengthscales, outputscale, noise = self._split(parameters)
        distances = np.tensordot(lengthscales**-2, self.squares, axes=1)
        kernel = outputscale * np.exp(-0.5 * distances)
        covariance = kernel + noise * np.eye(len(self.y))
        factor, _ = cho_factor(covariance, lower=True, overwrite_a=True, check_finite=False)
        return kernel, factor

    @staticmethod
    def _split(parameters: np.ndarray) -> tuple[np.ndarray, float, float]:
        values = np.exp(parameters)
        return values[:-2], float(values[-2]), float(values[-1])


def _inverse(factor: np.ndarray) -> np.ndarray:
    """The inverse of a matrix from its lower Cholesky factor."""
    lower, status = dpotri(factor, lower=1)
    if status != 0:
        raise np.linalg.LinAlgError(f"The inverse failed with status {status}.")
    below = np.tril(lower)
    return below + np.tril(lower, -1).T


def _log_priors(
    lengthscales: np.ndarray, outputscale: float, noise: float
) -> tuple[float, np.ndarray]:
    """Log densities of the priors, and their derivatives by the logarithms of the parameters."""
    scales = np.array([*lengthscales, outputscale])
    shapes, rates = np.array([*[LENGTHSCALE_PRIOR] * len(lengthscales), OUTPUTSCALE_PRIOR]).T
    location, spread = NOISE_PRIOR
    deviation = (math.log(noise) - location) / spread
    value = np.sum((shapes - 1) * np.log(scales) - rates * scales + shapes * np.log(rates))
    value -= sum(map(math.lgamma, shapes)) + 0.5 * deviation**2 + math.log(noise * spread)
    value -= 0.5 * math.log(2 * math.pi)
    gradient = [*((shapes - 1) - rates * scales), -deviation / spread - 1]
    return float(value), np.array(gradient)
