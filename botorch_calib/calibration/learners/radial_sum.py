"""Localized thresholds as a sum of terms each of which is a product over the columns of the input.

``exp(-|z - z_t|^2 / l^2)`` of a joint input ``z = (x, c)`` is a function of ``x`` times one of
``c``. At all pairs of ``b`` inputs ``x`` and ``M`` inputs ``c`` the sum therefore is a product of
matrices, without an exponential at every pair, and so are its derivatives: with ``b = 64`` and
``M = 100`` a robust bound takes a half to a third of the time that it takes with thresholds at each
pair and automatic differentiation (``benchmarks/studies/simpler_forms_robust.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Numbers that are held at a time beside the results, on the way to values at all pairs: few enough
# to stay in the cache. On a device, whose launches have to be few, there are more.
_ELEMENTS, _DEVICE_ELEMENTS = 2**17, 2**23
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
        """With terms for ``t`` centers at each lengthscale; ``coefficients`` are ``S t x L``."""
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
        return PairedSums(self, _Side(self, columns[0], first), _Side(self, columns[1], second))


class _Side:
    """Some columns of inputs and of the centers of a sum, in double precision.

    Attributes:
        points: From the first center, from where differences lose no digits, ``m x d'``.
        sides: ``2 rates`` and ``2 rates centers`` side by side, ``T x (1 + d')``.
        factors: What these columns contribute to each term, ``m x T``.
    """

    def __init__(self, radial: RadialSum, columns: list[int], points: Tensor) -> None:
        centers, rates = radial.centers.double()[:, columns], radial.rates.double()
        self.points, centers = points.double() - centers[0], centers - centers[0]
        self.sides = (2.0 * rates).unsqueeze(-1) * torch.nn.functional.pad(centers, (1, 0), value=1)
        mode = "donot_use_mm_for_euclid_dist"
        distances = torch.cdist(self.points, centers, compute_mode=mode)
        self.factors = distances.square_().mul_(-rates).exp_()


class PairedSums:
    """A `RadialSum` at all pairs of ``b`` and ``M`` inputs, without a graph."""

    @torch.no_grad()
    def __init__(self, radial: RadialSum, first: _Side, second: _Side) -> None:
        self._constants, self._coefficients = radial.constants, radial.coefficients.double().mT
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
        return self._constants + _joined(parts).to(self._constants).contiguous()

    @torch.no_grad()
    def pulled(self, by_values: Tensor) -> Tensor:
        """From derivatives by the values ``b x M x L`` to those by the inputs ``b x M x d``.

        With ``R_t`` the derivative by the logarithm of term ``t`` they are
        ``2 sum_t rates_t R_t (centers_t - z)``, first columns first. Of few thresholds the sums
        are products for each; of many, the derivatives by all terms are one product.
        """
        one, other, coefficients = self._first, self._second, self._coefficients
        sides = torch.cat([one.sides, other.sides[:, 1:]], dim=-1)
        few = len(coefficients) <= _FEW
        rows = coefficients.unsqueeze(1) * sides.mT if few else other.factors
        num, parts = self._num_rows(rows), []
        for left, by in zip(one.factors.split(num), by_values.double().split(num), strict=True):
            if few:
                products = (left[:, None, None] * rows).flatten(0, 2) @ other.factors.mT
                products = products.view(len(left), *rows.shape[:2], len(other.factors))
                parts.append(products.mul_(by.mT.unsqueeze(2)).sum(dim=1).mT)
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
        """Inputs at a time of which each makes so many numbers."""
        most = _DEVICE_ELEMENTS if columns.is_cuda else _ELEMENTS
        return max(most // max(columns.numel(), 1), 1)


def _joined(parts: list[Tensor]) -> Tensor:
    """The rows of all, without a copy of a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
