"""Localized thresholds: sums of Gaussian terms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class Terms:
    """Gaussian terms ``exp(-|x - centers_t|^2 / lengthscale^2)`` of all centers and lengthscales.

    The squared distance is expanded into a single matrix product. Coordinates are relative to the
    first center and in double precision. So cancellation is harmless unless the inputs spread over
    more than 1e6 lengthscales. The squared distance is not clamped at 0, because clamping would
    falsify second derivatives at coinciding points.

    Centers ``t x d`` and ``S`` lengthscales give ``T = S t`` terms, grouped by lengthscale.
    """

    def __init__(self, centers: Tensor, lengthscales: Sequence[float]) -> None:
        self.origin = centers[0].double()
        centers = centers.double() - self.origin
        squares = -(centers * centers).sum(dim=-1, keepdim=True)
        right = torch.cat([2.0 * centers, torch.full_like(centers, -1.0), squares], dim=-1)
        right = torch.cat([right / (scale * scale) for scale in lengthscales])
        # The last column would be multiplied by a constant 1 on the left, so it is only added.
        self._right, self._last = right[:, :-1].mT, right[:, -1]

    def at(self, X: Tensor) -> Tensor:
        """The terms ``N x T`` of the ``N`` inputs in ``... x d``, in double precision."""
        X = X.to(self.origin) - self.origin
        # The left side has the square of each coordinate. Their sum would cost more, as X is large.
        left = torch.cat([X, X * X], dim=-1).reshape(-1, len(self._right))
        return torch.addmm(self._last, left, self._right).exp_()


def gaussian_correlation(X1: Tensor, X2: Tensor, lengthscale: float) -> Tensor:
    """Gaussian correlations ``... x n`` between inputs ``... x d`` and inputs ``n x d``."""
    return Terms(X2, [lengthscale]).at(X1).view(*X1.shape[:-1], len(X2)).to(X1)


def radial_sum(
    constants: Tensor, centers: Tensor, lengthscales: Sequence[float], coefficients: Tensor
) -> Callable[[Tensor], Tensor]:
    """Return a differentiable function from inputs ``... x d`` to values ``... x L``.

    At ``x`` it is ``constants + sum_t coefficients_t exp(-|x - centers_t|^2 / lengthscale_t^2)``.

    Args:
        constants: Constants ``L``.
        centers: Centers ``t x d``.
        lengthscales: ``S`` lengthscales. Each has terms for all ``t`` centers.
        coefficients: Coefficients ``S t x L``, grouped by lengthscale.
    """
    terms, start, weights = Terms(centers, lengthscales), constants.double(), coefficients.double()

    def values(X: Tensor) -> Tensor:
        sums = torch.addmm(start, terms.at(X), weights)
        return sums.view(*X.shape[:-1], len(constants)).to(constants)

    return values
