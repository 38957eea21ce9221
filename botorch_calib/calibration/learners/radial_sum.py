"""Localized thresholds: sums of Gaussian terms."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Terms:
    """``exp(-|x - centers_t|^2 / lengthscale^2)`` for all centers, and each of the lengthscales.

    The squared distance is expanded into a single matrix product, about the first center, which
    keeps cancellation small, and in double precision, in which it is harmless unless the inputs
    spread over more than 1e6 lengthscales. It is not clamped at 0, since that would falsify second
    derivatives where points coincide.

    With centers ``t x d`` and ``S`` lengthscales there are ``T = S t`` terms, by lengthscale.
    """

    def __init__(self, centers: Tensor, lengthscales: Sequence[float]) -> None:
        self.origin = centers[0].double()
        centers = centers.double() - self.origin
        squares = -(centers * centers).sum(dim=-1, keepdim=True)
        right = torch.cat([2.0 * centers, torch.full_like(centers, -1.0), squares], dim=-1)
        # One product for all: the right factors, divided by each squared lengthscale.
        right = torch.cat([right / (scale * scale) for scale in lengthscales])
        # The last column belongs to a constant 1 on the left.
        self._right, self._last = right[:, :-1].mT, right[:, -1]

    def at(self, X: Tensor) -> Tensor:
        """The terms ``N x T`` of the ``N`` inputs in ``... x d``, in double precision."""
        X = X.to(self.origin) - self.origin
        # Squares go in elementwise on the left: summing the larger side would cost more.
        left = torch.cat([X, X * X], dim=-1).reshape(-1, len(self._right))
        return torch.addmm(self._last, left, self._right).exp_()


def gaussian_correlation(X1: Tensor, X2: Tensor, lengthscale: float) -> Tensor:
    """``exp(-|x - x'|^2 / lengthscale^2)``, ``... x n`` for ``... x d`` and ``n x d``."""
    return Terms(X2, [lengthscale]).at(X1).view(*X1.shape[:-1], len(X2)).to(X1)


class RadialSum:
    """``constants + sum_t coefficients_t exp(-|z - centers_t|^2 / lengthscale_t^2)``.

    The constants are ``L``, the centers ``t x d``; each of ``S`` lengthscales has terms for all
    centers, and their coefficients, ``S t x L``, are together.
    """

    def __init__(
        self,
        constants: Tensor,
        centers: Tensor,
        lengthscales: Sequence[float],
        coefficients: Tensor,
    ) -> None:
        self.constants, self.coefficients = constants, coefficients.double()
        self._terms, self._start = Terms(centers, lengthscales), constants.double()

    def at(self, X: Tensor) -> Tensor:
        """Values ``... x L`` at inputs ``... x d``, differentiable in them."""
        values = torch.addmm(self._start, self._terms.at(X), self.coefficients)
        return values.view(*X.shape[:-1], len(self.constants)).to(self.constants)
