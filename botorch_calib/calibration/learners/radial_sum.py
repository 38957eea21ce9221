"""Sums of Gaussian terms, which are the thresholds of localized learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable


class Terms:
    """Gaussian terms ``exp(-|x - center|^2 / lengthscale^2)`` of all centers and lengthscales.

    With centers ``t x d`` and ``S`` lengthscales there are ``T = S t`` terms, grouped by
    lengthscale.

    The squared distance is expanded into a single matrix product. Coordinates are relative to the
    first center and in double precision. So cancellation is harmless unless the inputs spread over
    more than 1e6 lengthscales. The squared distance is not clamped at 0, because clamping would
    falsify second derivatives at coinciding points.
    """

    def __init__(self, centers: Tensor, lengthscales: Sequence[float]) -> None:
        self.origin = centers[0].double()
        centers = centers.double() - self.origin
        squares = -(centers * centers).sum(dim=-1, keepdim=True)
        right = torch.cat([2.0 * centers, torch.full_like(centers, -1.0), squares], dim=-1)
        right = torch.cat([right / (scale * scale) for scale in lengthscales])
        # The exponent is [x, x^2, 1] times `right`. As the last factor is the constant 1, `at` adds
        # the last column instead of multiplying it.
        self._right, self._last = right[:, :-1].mT, right[:, -1]

    def at(self, X: Tensor) -> Tensor:
        """The ``T`` terms at the ``N`` points of ``X``, ``... x d``: ``N x T``, in float64."""
        X = X.to(self.origin) - self.origin
        # The product sums the squared coordinates. To sum them first would take longer for large X.
        left = torch.cat([X, X * X], dim=-1).reshape(-1, len(self._right))
        return torch.addmm(self._last, left, self._right).exp_()


def gaussian_correlation(X1: Tensor, X2: Tensor, lengthscale: float) -> Tensor:
    """The correlations ``exp(-|x1 - x2|^2 / lengthscale^2)`` of two sets of inputs.

    For ``X1``, ``batch_shape x d``, and ``X2``, ``n x d``, the result is ``batch_shape x n``, in
    the precision of ``X1``.
    """
    return Terms(X2, [lengthscale]).at(X1).view(*X1.shape[:-1], len(X2)).to(X1)


class RadialSum:
    """``L`` functions of ``x``: constants plus sums of terms ``exp(-|x - center|^2 / l^2)``.

    Each function has a term for each of ``t`` centers and each of ``S`` lengthscales ``l``.

    Args:
        constants: Constant of each function, ``L``.
        centers: Centers ``t x d``.
        lengthscales: The ``S`` lengthscales.
        coefficients: Coefficients of the terms in each function, ``T x L`` with ``T = S t``. All
            terms with the first lengthscale come first, in the order of the centers.
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
        # The gradient of a term in x is the term times 2 (center - x) / lengthscale^2. A sum of
        # terms times the rows of `_sides` gives the part with the center and, in the last column,
        # the factor of -x. Both are relative to the first center.
        sides = torch.nn.functional.pad(self.centers - self.centers[0], (0, 1), value=1.0)
        self._sides = torch.cat([2.0 / (scale * scale) * sides for scale in lengthscales])
        self._parts: dict[tuple[int, ...], Terms] = {}
        self._terms, self._start = Terms(centers, lengthscales), constants.double()

    def at(self, X: Tensor) -> Tensor:
        """Values of the ``L`` functions at inputs ``... x d``: ``... x L``, differentiable."""
        values = torch.addmm(self._start, self._terms.at(X), self.coefficients)
        return values.view(*X.shape[:-1], len(self.constants)).to(self.constants)

    def at_pairs(self, Z: Tensor, columns: Sequence[int], others: Sequence[int]) -> Tensor:
        """Values ``b x M x L`` of the ``L`` functions at a grid ``Z``, ``b x M x d``.

        The ``columns`` of ``Z`` are equal for all ``M`` points of a row, and the ``others`` are
        equal for all ``b`` rows. So each term is the product of a factor for the row and a factor
        for the place in the row. The result may be differentiated in ``Z`` only once.
        """
        values: Tensor = _AtPairs.apply(Z, self, columns, others)
        return values

    def _part(self, X: Tensor, columns: Sequence[int]) -> Tensor:
        """The factors of the ``T`` terms for some ``columns`` of ``X``, ``N x d``: ``N x T``."""
        places = tuple(columns)
        if places not in self._parts:
            self._parts[places] = Terms(self.centers[:, columns], self.lengthscales)
        return self._parts[places].at(X[:, columns])


class _AtPairs(Function):
    """`RadialSum.at_pairs`, with exponentials for ``b + M`` factors and not for ``b M`` points."""

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
