"""Gaussian processes under delayed feedback and contexts: squared-exponential, from two starts."""

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
# Short and long lengthscales can have a maximum each, so a fit starts from both, as long as it
# costs little; with more points than this, it starts from the last fit alone.
FIRST_LENGTHSCALES = (0.3, 0.03)
FIRST_NOISE = math.exp(-4.0)
MAX_POINTS_MANY_STARTS = 150


class Hyperparameters(NamedTuple):
    """Of the process on the unit cube, for standardised outcomes; a batch of each, or one."""

    lengthscales: Tensor
    outputscale: Tensor
    noise: Tensor
    mean: Tensor


@dataclass(frozen=True)
class RefittedRBF(Refitted):
    """A squared-exponential GP with one lengthscale for each input, fitted every tenth round."""

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
    """Fit a squared-exponential Gaussian process by its marginal likelihood and weak priors.

    Args:
        X: Points, ``n x d``.
        Y: Outcomes, ``n x 1``.
        bounds: The box, ``2 x d``.
        previous: A fitted one, whose hyperparameters are a further start.
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
    # All of them are the best one.
    set_hyperparameters(gp, Hyperparameters(*(each[0] for each in hyperparameters(batch))))
    return gp.requires_grad_(False)


def rbf_gp(X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
    """The process, or a batch of them, before it is fitted: arguments as for `fit_rbf_gp`.

    The priors are those that BoTorch long gave its Matern kernel, and that of its likelihood.
    Without priors a handful of points is often explained as nothing but noise.
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
    """Set those of a GP made by `rbf_gp`, within their ranges but for rounding."""
    lengthscales = found.lengthscales.unsqueeze(-2)
    gp.covar_module.base_kernel.lengthscale = lengthscales.clamp(*LENGTHSCALE_RANGE)
    gp.covar_module.outputscale = found.outputscale.clamp(*OUTPUTSCALE_RANGE)
    gp.likelihood.noise = found.noise.unsqueeze(-1).clamp(min=LEAST_NOISE)
    gp.mean_module.constant.data.copy_(found.mean)


def hyperparameters(gp: SingleTaskGP) -> Hyperparameters:
    """Those of a GP made by `rbf_gp`."""
    kernel: Any = gp.covar_module
    values = kernel.base_kernel.lengthscale.squeeze(-2), kernel.outputscale
    noise, mean = gp.likelihood.noise.squeeze(-1), gp.mean_module.constant
    return Hyperparameters(*(each.detach() for each in (*values, noise, mean)))
