"""Localized thresholds: sums of Gaussian terms, which are products over the columns of the input.

``exp(-|z - z_t|^2 / l^2)`` of a joint input ``z = (x, c)`` is a function of ``x`` times one of
``c``. At all pairs of ``b`` inputs ``x`` and ``M`` inputs ``c`` the sum is therefore a product of
matrices, and so are its derivatives: with ``b = 64`` and ``M = 100`` a robust bound takes a third
to a half of the time of thresholds at each pair and automatic differentiation
(``benchmarks/studies/simpler_forms_robust.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Numbers held at a time on the way to values at all pairs: few enough to stay in the cache. On a
# device, whose launches have to be few, there are more.
_ELEMENTS, _DEVICE_ELEMENTS = 2**17, 2**23


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
        # Centers and rates of all ``T = S t`` terms
        self.origin = self._terms.origin
        self.centers = (centers.double() - self.origin).repeat(len(lengthscales), 1)
        rates = self.origin.new_tensor([scale**-2.0 for scale in lengthscales])
        self.rates = rates.repeat_interleave(len(centers))

    def at(self, X: Tensor) -> Tensor:
        """Values ``... x L`` at inputs ``... x d``, differentiable in them."""
        values = torch.addmm(self._start, self._terms.at(X), self.coefficients)
        return values.view(*X.shape[:-1], len(self.constants)).to(self.constants)

    def at_pairs(
        self, first: Tensor, second: Tensor, columns: tuple[list[int], list[int]]
    ) -> PairedSums:
        """The sum at all pairs of some ``columns`` of inputs, ``b x d'``, and the others."""
        return PairedSums(self, _Side(self, columns[0], first), _Side(self, columns[1], second))


class _Side:
    """Some columns of inputs and of the centers of a sum, in double precision.

    ``points`` are from the first center, ``m x d'``; ``sides`` are ``2 rates`` and ``2 rates
    centers`` side by side, ``T x (1 + d')``; ``factors`` are those of the columns in each term.
    """

    def __init__(self, radial: RadialSum, columns: list[int], points: Tensor) -> None:
        centers, rates = radial.centers[:, columns], radial.rates
        self.points = points.double() - radial.origin[columns]
        self.sides = (2.0 * rates).unsqueeze(-1) * torch.nn.functional.pad(centers, (1, 0), value=1)
        mode = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(self.points, centers, compute_mode=mode)
        self.factors = distances.square_().mul_(-rates).exp_()


class PairedSums:
    """A `RadialSum` at all pairs of ``b`` and ``M`` inputs, without a graph."""

    def __init__(self, radial: RadialSum, first: _Side, second: _Side) -> None:
        self._constants, self._coefficients = radial.constants, radial.coefficients.mT.contiguous()
        self._first, self._second = first, second

    @torch.no_grad()
    def values(self) -> Tensor:
        """Values ``b x M x L``, in the type of the constants."""
        coefficients, right = self._coefficients, self._second.factors
        parts = []
        for left in self._first.factors.split(self._num_rows(coefficients)):
            products = (left.unsqueeze(1) * coefficients).flatten(0, 1) @ right.mT
            parts.append(products.view(len(left), len(coefficients), len(right)).mT)
        # Thresholds of a pair side by side, as they are sorted next
        return _joined(parts).to(self._constants).contiguous().add_(self._constants)

    @torch.no_grad()
    def pulled(self, by_values: Tensor) -> Tensor:
        """From derivatives by the values ``b x M x L`` to those by the inputs ``b x M x d``.

        With ``R_t`` the derivative by the logarithm of term ``t`` they are
        ``2 sum_t rates_t R_t (centers_t - z)``, first columns first. Where there is one threshold,
        the derivative by its value is a factor of the sum.
        """
        one, other, coefficients = self._first, self._second, self._coefficients
        sides, single = torch.cat([one.sides, other.sides[:, 1:]], dim=-1), len(coefficients) == 1
        rows = coefficients * sides.mT if single else other.factors
        num, parts = self._num_rows(rows), []
        for left, by in zip(one.factors.split(num), by_values.double().split(num), strict=True):
            if single:
                products = (left.unsqueeze(1) * rows).flatten(0, 1) @ other.factors.mT
                parts.append(products.view(len(left), len(rows), -1).mT * by)
            else:
                by_terms = (by @ coefficients).mul_(left.unsqueeze(1)).mul_(other.factors)
                parts.append(by_terms @ sides)
        sums = _joined(parts)
        total, split = sums[..., :1], 1 + one.points.shape[-1]
        sums[..., 1:split].addcmul_(total, one.points.unsqueeze(1), value=-1.0)
        sums[..., split:].addcmul_(total, other.points, value=-1.0)
        return sums[..., 1:].to(by_values)

    @staticmethod
    def _num_rows(columns: Tensor) -> int:
        """Number of inputs at a time, each with as many numbers as ``columns``."""
        most = _DEVICE_ELEMENTS if columns.is_cuda else _ELEMENTS
        return max(most // max(columns.numel(), 1), 1)


def _joined(parts: list[Tensor]) -> Tensor:
    """The rows of all, without a copy of a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
