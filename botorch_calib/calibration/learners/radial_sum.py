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

# Numbers that are held at a time beside the results, on the way to values at all pairs: few enough
# to stay in a CPU's cache, or few launches on a device.
_ELEMENTS, _DEVICE_ELEMENTS = 2**18, 2**23
_FEW = 4  # thresholds up to which their derivatives are summed one by one


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
        centers = [radial.centers[:, own].double() for own in columns]
        # A factor of each term for either side, b x T and M x T
        self._left, self._right = (
            (side.unsqueeze(1) - own).square_().sum(dim=-1).mul_(-self._rates).exp_()
            for side, own in zip(points, centers, strict=True)
        )
        # From the first center, so that differences lose no digits far from the origin
        self._points = [side - own[:1] for side, own in zip(points, centers, strict=True)]
        self._centers = torch.cat([own - own[:1] for own in centers], dim=-1)

    @torch.no_grad()
    def values(self) -> Tensor:
        """Values ``b x M x L``, in the type of the constants."""
        num, parts = len(self._coefficients), []
        for left in self._left.split(self._num_rows(self._coefficients)):
            rows = (left.unsqueeze(1) * self._coefficients).flatten(0, 1)
            parts.append((rows @ self._right.mT).view(len(left), num, len(self._right)).mT)
        return self._constants + torch.cat(parts).to(self._constants)

    @torch.no_grad()
    def pulled(self, by_values: Tensor) -> Tensor:
        """From derivatives by the values ``b x M x L`` to those by the inputs ``b x M x d``.

        With ``R_t`` the derivative by the logarithm of term ``t`` they are
        ``2 sum_t rates_t R_t (centers_t - z)``, first columns first. Of few thresholds the sums
        are products for each; of many, the derivatives by all terms are one product.
        """
        sides = torch.cat([torch.ones_like(self._centers[:, :1]), self._centers], dim=-1)
        sides *= 2.0 * self._rates.unsqueeze(-1)
        few = len(self._coefficients) <= _FEW
        rows = self._coefficients.unsqueeze(1) * sides.mT if few else self._right
        num, parts = self._num_rows(rows), []
        for left, by in zip(self._left.split(num), by_values.double().split(num), strict=True):
            if few:
                products = (left[:, None, None] * rows).flatten(0, 2) @ self._right.mT
                products = products.view(len(left), *rows.shape[:2], len(self._right))
                parts.append(products.mul_(by.mT.unsqueeze(2)).sum(dim=1).mT)
            else:
                by_terms = (by @ self._coefficients).mul_(left.unsqueeze(1)).mul_(self._right)
                parts.append(by_terms @ sides)
        sums = torch.cat(parts)
        total, by_inputs = sums[..., :1], sums[..., 1:]
        first, second = self._points
        by_inputs[..., : first.shape[-1]].addcmul_(total, first.unsqueeze(1), value=-1.0)
        by_inputs[..., first.shape[-1] :].addcmul_(total, second, value=-1.0)
        return by_inputs.to(by_values)

    @staticmethod
    def _num_rows(columns: Tensor) -> int:
        """Inputs at a time of which each makes so many numbers."""
        most = _DEVICE_ELEMENTS if columns.is_cuda else _ELEMENTS
        return max(most // max(columns.numel(), 1), 1)
