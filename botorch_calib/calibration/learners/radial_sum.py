"""Localized thresholds: sums of Gaussian terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Terms:
    """Gaussian terms ``exp(-|x - centers_t|^2 / lengthscale^2)`` of all centers and lengthscales.

    The squared distance is expanded into a single matrix product. Coordinates are relative to the
    first center and in double precision. So cancellation is harmless unless the inputs spread over
    more than 1e6 lengthscales. The squared distance is not clamped at 0, because clamping would
    falsify second derivatives at coinciding points.

    With centers ``t x d`` and ``S`` lengthscales there are ``T = S t`` terms, grouped by
    lengthscale.
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


class RadialSum:
    """The function ``constants + sum_t coefficients_t exp(-|z - centers_t|^2 / lengthscale_t^2)``.

    Each of ``S`` lengthscales has terms for all ``t`` centers.

    Args:
        constants: Constants ``L``.
        centers: Centers ``t x d``.
        lengthscales: The ``S`` lengthscales.
        coefficients: Coefficients ``S t x L``, grouped by lengthscale.
    """

    def __init__(
        self,
        constants: Tensor,
        centers: Tensor,
        lengthscales: Sequence[float],
        coefficients: Tensor,
    ) -> None:
        self.constants, self.coefficients = constants, coefficients.double()
        self.centers, self.lengthscales = centers.double(), lengthscales
        # The gradient of term t in z is the term times 2 (center_t - z) / lengthscale_t^2.
        sides = torch.nn.functional.pad(self.centers - self.centers[0], (0, 1), value=1.0)
        self._sides = torch.cat([2.0 / (scale * scale) * sides for scale in lengthscales])
        self._parts: dict[tuple[int, ...], Terms] = {}
        self._terms, self._start = Terms(centers, lengthscales), constants.double()

    def at(self, X: Tensor) -> Tensor:
        """Values ``... x L`` at inputs ``... x d``, differentiable in the inputs."""
        values = torch.addmm(self._start, self._terms.at(X), self.coefficients)
        return values.view(*X.shape[:-1], len(self.constants)).to(self.constants)

    def at_pairs(self, Z: Tensor, columns: Sequence[int], others: Sequence[int]) -> Tensor:
        """Values ``b x M x L`` at a grid ``Z``, ``b x M x d``, once differentiable.

        Values of ``Z`` in ``columns`` vary along ``b`` only, and values in ``others`` along ``M``.
        So each term is the product of a factor for ``columns`` and a factor for ``others``.
        """
        values: Tensor = _AtPairs.apply(Z, self, columns, others)
        return values

    def _part(self, X: Tensor, columns: Sequence[int]) -> Tensor:
        """The factors ``N x T`` of the terms for some ``columns`` of ``X``, ``N x d``."""
        places = tuple(columns)
        if places not in self._parts:
            self._parts[places] = Terms(self.centers[:, columns], self.lengthscales)
        return self._parts[places].at(X[:, columns])


class _AtPairs(Function):
    """Implements `RadialSum.at_pairs`, with exponentials for the factors and not for all pairs."""

    @staticmethod
    def forward(
        ctx: Any, Z: Tensor, radial: RadialSum, columns: Sequence[int], others: Sequence[int]
    ) -> Tensor:
        first, second = radial._part(Z[:, 0], columns), radial._part(Z[0], others)
        ctx.save_for_backward(Z, first, second)
        ctx.radial = radial
        products = (first.unsqueeze(1) * radial.coefficients.mT).flatten(0, 1) @ second.mT
        values = products.view(len(Z), -1, len(second)).mT
        return values.to(radial.constants).add(radial.constants)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (Z, first, second), radial = ctx.saved_tensors, ctx.radial
        terms = grad.double() @ radial.coefficients.mT
        sums = terms.mul_(first.unsqueeze(1)).mul_(second) @ radial._sides
        by_inputs = torch.addcmul(sums[..., :-1], Z - radial.centers[0], sums[..., -1:], value=-1.0)
        return by_inputs.to(Z), None, None, None
