"""Localized thresholds: sums of Gaussian terms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


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
        self.centers, self.lengthscales = centers.double(), lengthscales
        # The derivative of term t by z is 2 (center_t - z) / lengthscale_t^2 times the term.
        sides = torch.nn.functional.pad(self.centers - self.centers[0], (0, 1), value=1.0)
        self._sides = torch.cat([2.0 / (scale * scale) * sides for scale in lengthscales])
        self._parts: dict[tuple[int, ...], Terms] = {}
        self._terms, self._start = Terms(centers, lengthscales), constants.double()

    def at(self, X: Tensor) -> Tensor:
        """Values ``... x L`` at inputs ``... x d``, differentiable in them."""
        values = torch.addmm(self._start, self._terms.at(X), self.coefficients)
        return values.view(*X.shape[:-1], len(self.constants)).to(self.constants)

    def at_pairs(self, Z: Tensor, columns: Sequence[int], others: Sequence[int]) -> Tensor:
        """Values ``b x M x L`` at ``Z``, ``b x M x d``: all pairs of some ``columns`` and others.

        A term is a factor of the columns times one of the others. Once differentiable.
        """
        values: Tensor = _AtPairs.apply(Z, self, columns, others)
        return values

    def _part(self, X: Tensor, columns: Sequence[int]) -> Tensor:
        """The factors ``N x T`` of some columns of ``N x d``."""
        places = tuple(columns)
        if places not in self._parts:
            self._parts[places] = Terms(self.centers[:, columns], self.lengthscales)
        return self._parts[places].at(X[:, columns])


class _AtPairs(Function):
    """`RadialSum.at_pairs`: no exponential at all pairs."""

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
