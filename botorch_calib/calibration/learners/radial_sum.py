"""Localized thresholds as a sum of terms each of which is a product over the columns of the input.

``exp(-|z - z_t|^2 / l^2)`` of a joint input ``z = (x, c)`` is a function of ``x`` times one of
``c``. At all pairs of ``b`` inputs ``x`` and ``M`` inputs ``c`` the sum therefore is a product of
matrices, without an exponential at every pair, and so are its derivatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Numbers that are held at a time beside the results, on the way to values at all pairs. On a
# device, whose launches have to be few, there are more.
_ELEMENTS, _DEVICE_ELEMENTS = 2**20, 2**23
_FEW = 6  # thresholds up to which their derivatives are summed one by one


@dataclass(frozen=True, eq=False)
class RadialSum:
    """``constants + sum_t coefficients_t exp(-rates_t |z - centers_t|^2)``.

    Attributes:
        constants: ``L``, one for each threshold.
        centers: ``T x d``.
        rates: One over the squared lengthscale, ``T``.
        coefficients: ``T x L``.
    """

    constants: Tensor
    centers: Tensor
    rates: Tensor
    coefficients: Tensor

    @classmethod
    def of(
        cls,
        constants: Tensor,
        centers: Tensor,
        lengthscales: Sequence[float],
        coefficients: Tensor,
    ) -> RadialSum:
        """With one term for each center at each lengthscale, those of a lengthscale in a row.

        Args:
            constants: ``L``.
            centers: ``t x d``.
            lengthscales: ``S`` numbers.
            coefficients: ``S t x L``.
        """
        rates = [centers.new_full((len(centers),), scale**-2.0) for scale in lengthscales]
        return cls(constants, centers.repeat(len(lengthscales), 1), torch.cat(rates), coefficients)

    def at_pairs(
        self, first: Tensor, second: Tensor, columns: tuple[list[int], list[int]]
    ) -> PairedSums:
        """The sum at all pairs.

        Args:
            first: Some columns of the inputs, ``b x d'``.
            second: The other ones, ``M x d''``.
            columns: Which columns these are.
        """
        return PairedSums(self, (first.double(), second.double()), columns)


class PairedSums:
    """A `RadialSum` at all pairs of ``b`` and ``M`` inputs, without a graph.

    Args:
        radial: The sum.
        points: Some columns of the inputs, ``b x d'``, and the other ones, ``M x d''``.
        columns: Which columns these are.
    """

    @torch.no_grad()
    def __init__(
        self,
        radial: RadialSum,
        points: tuple[Tensor, Tensor],
        columns: tuple[list[int], list[int]],
    ) -> None:
        self._constants, self._rates = radial.constants, radial.rates.double()
        self._coefficients = radial.coefficients.double().mT
        # All from the first center, so that differences lose no digits far from the origin
        origin = radial.centers[0].double()
        centered = radial.centers.double() - origin
        self._centers = [centered[:, own] for own in columns]
        self._first, self._second = (
            side - origin[own] for side, own in zip(points, columns, strict=True)
        )
        self._right = self._factors(self._second, 1)

    def _factors(self, points: Tensor, side: int) -> Tensor:
        """A factor of each term for points on either side, ``m x T``."""
        squares = (points.unsqueeze(1) - self._centers[side]).square_().sum(dim=-1)
        return squares.mul_(-self._rates).exp_()

    @torch.no_grad()
    def values(self) -> Tensor:
        """Values ``b x M x L``, in the type of the constants."""
        num, parts = len(self._coefficients), []
        for points in self._first.split(self._num_rows(self._coefficients)):
            rows = self._factors(points, 0).unsqueeze(1) * self._coefficients
            products = rows.flatten(0, 1) @ self._right.mT
            parts.append(products.view(len(points), num, len(self._right)).mT)
        return self._constants + torch.cat(parts).to(self._constants)

    @torch.no_grad()
    def pulled(self, by_values: Tensor) -> Tensor:
        """From derivatives by the values ``b x M x L`` to those by the inputs ``b x M x d``.

        With ``R_t`` the derivative by the logarithm of term ``t`` they are
        ``2 sum_t rates_t R_t (centers_t - z)``, first columns first. Of few thresholds the sums
        are products for each; of many, the derivatives by all terms are one product.
        """
        weights = 2.0 * self._rates.unsqueeze(-1)
        sides = torch.cat([weights, *(weights * own for own in self._centers)], dim=-1)
        few = len(self._coefficients) <= _FEW
        rows = self._coefficients.unsqueeze(1) * sides.mT if few else self._right
        num, parts = self._num_rows(rows), []
        for points, by in zip(self._first.split(num), by_values.double().split(num), strict=True):
            left = self._factors(points, 0)
            if few:
                products = (left[:, None, None] * rows).flatten(0, 2) @ self._right.mT
                products = products.view(len(left), *rows.shape[:2], len(self._right))
                parts.append(products.mul_(by.mT.unsqueeze(2)).sum(dim=1).mT)
            else:
                by_terms = (by @ self._coefficients).mul_(left.unsqueeze(1)).mul_(self._right)
                parts.append(by_terms @ sides)
        sums = torch.cat(parts)
        total, by_inputs = sums[..., :1], sums[..., 1:]
        split = self._first.shape[-1]
        by_inputs[..., :split].addcmul_(total, self._first.unsqueeze(1), value=-1.0)
        by_inputs[..., split:].addcmul_(total, self._second, value=-1.0)
        return by_inputs.to(by_values)

    @staticmethod
    def _num_rows(columns: Tensor) -> int:
        """Inputs at a time of which each makes so many numbers."""
        most = _DEVICE_ELEMENTS if columns.is_cuda else _ELEMENTS
        return max(most // max(columns.numel(), 1), 1)
