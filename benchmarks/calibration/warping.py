"""Monotone transforms of outcomes that make them look more like draws of a Gaussian distribution.

Outcomes are taken as costs, as in the papers that propose these, and standardised. The
parameters maximise the likelihood of independent Gaussian draws, as is usual for Box-Cox. The
papers on warped processes maximise that of the process itself instead, which takes a
joint fit for every family; with some ten outcomes the difference is small against the
uncertainty of either.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

# Costs may fall below the smallest one seen; logarithms and powers need them positive.
SHIFT = 0.1
SMALLEST = 1e-6


class Family(ABC):
    """A family of increasing functions of standardised costs ``z``, whose least is 0."""

    start: tuple[float, ...] = ()
    limits: tuple[tuple[float, float], ...] = ()

    @abstractmethod
    def transform(self, z: Tensor, parameters: Tensor) -> Tensor:
        """Transformed costs, of the shape of ``z`` and differentiable in both arguments."""


class Logarithm(Family):
    """The logarithm of shifted costs; it has no parameters."""

    def transform(self, z: Tensor, parameters: Tensor) -> Tensor:
        """See `Family`."""
        return (z + SHIFT).clamp(min=SMALLEST).log()


class BoxCox(Family):
    """The powers of Box and Cox of shifted costs."""

    start = (1.0,)
    limits = ((-1.0, 2.0),)

    def transform(self, z: Tensor, parameters: Tensor) -> Tensor:
        """See `Family`."""
        logarithm = (z + SHIFT).clamp(min=SMALLEST).log()
        power = parameters[0]
        if power.abs() < 1e-8:
            return logarithm
        return torch.expm1(power * logarithm) / power


class TanhSum(Family):
    """``z + a tanh(b (z - c))`` (Snelson, Rasmussen & Ghahramani 2004), one term of the sum.

    The slope ``b`` is limited, since a step at an outcome would have an unbounded likelihood.
    """

    start = (0.5, 1.0, 1.0)
    limits = ((0.0, 5.0), (0.1, 2.0), (0.0, 4.0))

    def transform(self, z: Tensor, parameters: Tensor) -> Tensor:
        """See `Family`."""
        a, b, c = parameters
        return z + a * torch.tanh(b * (z - c))


@dataclass(frozen=True)
class OutcomeWarp:
    """An increasing function of outcomes that are maximised.

    Args:
        family: The family.
        parameters: Its parameters.
        least_cost: The cost that is standardised to 0.
        scale: The unit of standardised costs.
    """

    family: Family
    parameters: Tensor
    least_cost: float
    scale: float

    def __call__(self, Y: Tensor) -> Tensor:
        """Transformed outcomes of the shape of ``Y``."""
        return -self.family.transform((-Y - self.least_cost) / self.scale, self.parameters)


def fit_warp(family: Family, Y: Tensor) -> OutcomeWarp:
    """The most likely member of a family for outcomes ``n x 1``."""
    costs = -Y.detach().double().flatten()
    scale = max(float(costs.std()), 1e-12)
    z = (costs - costs.min()) / scale

    def negative(parameters: np.ndarray) -> tuple[float, np.ndarray]:
        point = torch.from_numpy(parameters).requires_grad_()
        value = -log_likelihood(family, z, point)
        (gradient,) = torch.autograd.grad(value, point)
        return value.item(), gradient.numpy()

    parameters = np.array(family.start, dtype=float)
    if len(parameters):
        options = {"jac": True, "method": "L-BFGS-B", "bounds": family.limits}
        parameters = minimize(negative, parameters, **options).x
    return OutcomeWarp(family, torch.from_numpy(parameters), float(costs.min()), scale)


def log_likelihood(family: Family, z: Tensor, parameters: Tensor) -> Tensor:
    """Log likelihood of costs of shape ``n`` as transformed Gaussian draws, up to a constant.

    The mean and the variance of the draws are the most likely ones.
    """
    z = z.detach().requires_grad_()
    values = family.transform(z, parameters)
    (slopes,) = torch.autograd.grad(values.sum(), z, create_graph=True)
    variance = values.var(correction=0).clamp(min=1e-12)
    return slopes.clamp(min=1e-12).log().sum() - 0.5 * len(z) * variance.log()
