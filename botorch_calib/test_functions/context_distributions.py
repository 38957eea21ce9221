"""Laws of a single context, for the problems of `botorch_calib.test_functions.contextual`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ClippedNormal:
    """N(mean, std^2), with values beyond ``lower`` and ``upper`` moved there."""

    mean: float
    std: float
    lower: float = 0.0
    upper: float = 1.0

    def icdf(self, u: Tensor) -> Tensor:
        """Quantiles at ``u`` in [0, 1], elementwise."""
        return (self.mean + self.std * torch.special.ndtri(u)).clamp(self.lower, self.upper)

    def rule(self, edges: Sequence[float], order: int) -> tuple[Tensor, Tensor]:
        """A quadrature rule: Gauss-Legendre between ``edges``, and the atoms at the ends.

        Args:
            edges: Increasing, from ``lower`` to ``upper``.
            order: Nodes between two edges.

        Returns:
            Nodes and weights (doubles of the same length); the weights sum to 1 up to the rule's
            error.
        """
        reference, weight = np.polynomial.legendre.leggauss(order)
        left, width = np.array(edges[:-1])[:, None], np.diff(edges)[:, None]
        nodes = torch.from_numpy((left + width * (reference + 1.0) / 2.0).ravel())
        z = (nodes - self.mean) / self.std
        density = torch.exp(-0.5 * z.square()) / (self.std * math.sqrt(2.0 * math.pi))
        weights = torch.from_numpy((width * weight / 2.0).ravel()) * density
        ends = torch.tensor([self.lower, self.upper], dtype=torch.double)
        signs = torch.tensor([1.0, -1.0], dtype=torch.double)
        atoms = torch.special.ndtr(signs * (ends - self.mean) / self.std)
        return torch.cat([nodes, ends]), torch.cat([weights, atoms])


@dataclass(frozen=True)
class UniformLaw:
    """The uniform law on an interval."""

    lower: float
    upper: float

    def icdf(self, u: Tensor) -> Tensor:
        """Quantiles at ``u`` in [0, 1], elementwise."""
        return self.lower + (self.upper - self.lower) * u


@dataclass(frozen=True)
class BurrXII:
    """The Burr law of type XII, ``P(c > s) = (1 + s^a)^-k``, with values beyond ``upper`` there."""

    a: float
    k: float
    upper: float

    def icdf(self, u: Tensor) -> Tensor:
        """Quantiles at ``u`` in [0, 1], elementwise."""
        return torch.expm1(-torch.log1p(-u) / self.k).pow(1.0 / self.a).clamp(max=self.upper)


Law = ClippedNormal | UniformLaw | BurrXII
