"""Squared-exponential Gaussian processes for delayed feedback and contexts, from two starts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from botorch.models import SingleTaskGP
from gpytorch.constraints import Interval
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.mlls import ExactMarginalLogLikelihood
from gpytorch.priors import GammaPrior
from torch import Tensor

from benchmarks.framework.surrogates import Refitted, on_unit_cube, with_data
from botorch_calib.models.hyperparameter_fits import fit_in_logarithms

LENGTHSCALE_RANGE, OUTPUTSCALE_RANGE, LEAST_NOISE = (5e-3, 20.0), (1e-2, 100.0), 1e-4
# The likelihood may have one maximum at short and one at long lengthscales: a fit starts from both.
FIRST_LENGTHSCALES = (0.3, 0.03)
FIRST_NOISE = math.exp(-4.0)
# With more points than this, a fit starts only from the previous fit, to save time.
MAX_POINTS_MANY_STARTS = 150


class Hyperparameters(NamedTuple):
    """Hyperparameters of a process, or of a batch, on the unit cube with standardised outcomes."""

    lengthscales: Tensor
    outputscale: Tensor
    noise: Tensor
    mean: Tensor


@dataclass(frozen=True)
class RefittedRBF(Refitted):
    """A squared-exponential GP with one lengthscale per input, fitted at every tenth step."""

    every: int = 10

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        if previous is None or step % self.every == 0:
            return fit_rbf_gp(X, Y, bounds, previous)
        return with_data(previous, X, Y)


def fit_rbf_gp(
    X: Tensor, Y: Tensor, bounds: Tensor, previous: SingleTaskGP | None = None
) -> SingleTaskGP:
    """Fit a squared-exponential Gaussian process by marginal likelihood, with weak priors.

    Args:
        X: Points, ``n x d``.
        Y: Outcomes, ``n x 1``.
        bounds: The box, ``2 x d``.
        previous: An earlier fit, whose hyperparameters are a further starting point.
    """
    starts = [] if previous is None else [hyperparameters(previous)]
    if previous is None or len(Y) <= MAX_POINTS_MANY_STARTS:
        one = Y.new_ones(())
        starts += [
            Hyperparameters(first * Y.new_ones(X.shape[-1]), one, FIRST_NOISE * one, 0.0 * one)
            for first in FIRST_LENGTHSCALES
        ]
    num = len(starts)
    batch = rbf_gp(X.expand(num, -1, -1), Y.expand(num, -1, -1), bounds)
    set_hyperparameters(batch, Hyperparameters(*map(torch.stack, zip(*starts, strict=True))))
    fit_in_logarithms(ExactMarginalLogLikelihood(batch.likelihood, batch))
    gp = rbf_gp(X, Y, bounds)
    # After the fit, all processes of the batch have the best hyperparameters.
    set_hyperparameters(gp, Hyperparameters(*(each[0] for each in hyperparameters(batch))))
    return gp.requires_grad_(False)


def rbf_gp(X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
    """Return an unfitted process, or a batch of processes; for arguments see `fit_rbf_gp`.

    The kernel has the former default priors of BoTorch's Matern kernel, and the noise has BoTorch's
    default prior. Without priors, a fit to a few points often explains them as noise only.
    """
    dim, shape = X.shape[-1], X.shape[:-2]
    kernel = RBFKernel(
        ard_num_dims=dim,
        batch_shape=shape,
        lengthscale_prior=GammaPrior(3.0, 6.0),
        lengthscale_constraint=Interval(*LENGTHSCALE_RANGE, transform=None),
    )
    scaled = ScaleKernel(
        kernel,
        batch_shape=shape,
        outputscale_prior=GammaPrior(2.0, 0.15),
        outputscale_constraint=Interval(*OUTPUTSCALE_RANGE, transform=None),
    )
    return on_unit_cube(X, Y, bounds, covar_module=scaled)


def set_hyperparameters(gp: SingleTaskGP, found: Hyperparameters) -> None:
    """Set the hyperparameters of a GP made by `rbf_gp`, clamped to their ranges."""
    lengthscales = found.lengthscales.unsqueeze(-2)
    gp.covar_module.base_kernel.lengthscale = lengthscales.clamp(*LENGTHSCALE_RANGE)
    gp.covar_module.outputscale = found.outputscale.clamp(*OUTPUTSCALE_RANGE)
    gp.likelihood.noise = found.noise.unsqueeze(-1).clamp(min=LEAST_NOISE)
    gp.mean_module.constant.data.copy_(found.mean)


def hyperparameters(gp: SingleTaskGP) -> Hyperparameters:
    """The hyperparameters of a GP made by `rbf_gp`."""
    kernel: Any = gp.covar_module
    values = kernel.base_kernel.lengthscale.squeeze(-2), kernel.outputscale
    noise, mean = gp.likelihood.noise.squeeze(-1), gp.mean_module.constant
    return Hyperparameters(*(each.detach() for each in (*values, noise, mean)))
