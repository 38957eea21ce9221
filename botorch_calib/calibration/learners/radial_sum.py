"""Localized thresholds as a sum of terms each of which is a product over the columns of the input.

``exp(-|z - z_t|^2 / l^2)`` of a joint input ``z = (x, c)`` is a function of ``x`` times one of
``c``. At all pairs of ``b`` inputs ``x`` and ``M`` inputs ``c`` the sum therefore is a product of
matrices, without an exponential at every pair, and so are its derivatives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

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
    _parts: dict[tuple[int, ...], _Part] = field(default_factory=dict, init=False, repr=False)

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
        return PairedSums(self._part(columns[0]), self._part(columns[1]), first, second)

    def at_points(self, points: Tensor, columns: list[int]) -> PointSums:
        """The sum at single inputs.

        Args:
            points: ``b x d``, with columns in any order.
            columns: Which columns of the inputs these are.
        """
        return PointSums(self._part(columns), points)

    def _part(self, columns: list[int]) -> _Part:
        key = tuple(columns)
        if key not in self._parts:
            # Tensors made in inference mode could not enter a graph later.
            with torch.inference_mode(False), torch.no_grad():
                self._parts[key] = _Part(self, columns)
        return self._parts[key]


class _Part:
    """A sum and some columns of its centers, in double precision.

    Attributes:
        constants: ``L``, as they are.
        coefficients: ``L x T``.
        minus_rates: ``T``.
        origin: The first center, from which all is measured: differences lose no digits far from
            the origin then. ``d'``.
        centers: From there, ``T x d'``.
        sides: ``2 rates`` and ``2 rates centers`` side by side, ``T x (1 + d')``.
    """

    def __init__(self, radial: RadialSum, columns: list[int]) -> None:
        self.constants, self.coefficients = radial.constants, radial.coefficients.double().mT
        centers, rates = radial.centers.double()[:, columns], radial.rates.double()
        self.minus_rates, self.origin = -rates, centers[0]
        self.centers = centers - self.origin
        self.sides = (2.0 * rates).unsqueeze(-1) * torch.nn.functional.pad(
            self.centers, (1, 0), value=1.0
        )

    def centered(self, points: Tensor) -> Tensor:
        """Points ``m x d'`` from the origin."""
        return points.double() - self.origin

    def factors(self, centered: Tensor) -> Tensor:
        """What these columns contribute to each term, as a factor, ``m x T``."""
        distances = torch.cdist(centered, self.centers, compute_mode="donot_use_mm_for_euclid_dist")
        return distances.square_().mul_(self.minus_rates).exp_()


class PointSums:
    r"""A `RadialSum` at ``b`` inputs and its derivatives along a direction, without a graph.

    With ``E_t`` its exponential, term ``t`` has the derivative ``2 rate_t E_t (c_t - z)`` by ``z``.

    Args:
        whole: The sum with all columns, in any order, which derivatives have too.
        points: The inputs, ``b x d``.
    """

    @torch.no_grad()
    def __init__(self, whole: _Part, points: Tensor) -> None:
        self._whole, self._points = whole, whole.centered(points)
        self._terms = whole.factors(self._points)

    @torch.no_grad()
    def values(self) -> Tensor:
        """Values ``b x L``, in the type of the constants."""
        sums = self._terms @ self._whole.coefficients.mT
        return self._whole.constants + sums.to(self._whole.constants)

    @torch.no_grad()
    def pulled(self, by_values: Tensor) -> Tensor:
        """From derivatives by the values ``b x L`` to those by the inputs ``b x d``."""
        by_terms = by_values.double() @ self._whole.coefficients
        return self._summed(by_terms.mul_(self._terms)).to(by_values)

    @torch.no_grad()
    def along(self, direction: Tensor) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        """Changes of the values along directions ``b x d``, ``b x L``, and those of `pulled`.

        The latter is a function of derivatives by the values and of their own changes. It leaves
        out what is parallel to the direction: that centers stay where they are, and inputs do not.
        """
        whole, direction = self._whole, direction.double()
        # Of the exponents, and of the terms
        change = direction @ whole.sides[:, 1:].mT
        own = torch.linalg.vecdot(direction, self._points).unsqueeze(-1)
        change.addcmul_(own, whole.sides[:, 0], value=-1.0).mul_(self._terms)

        @torch.no_grad()
        def pulled_change(by_values: Tensor, changes: Tensor) -> Tensor:
            by_terms, changed = (by.double() @ whole.coefficients for by in (by_values, changes))
            return self._summed(changed.mul_(self._terms).addcmul_(by_terms, change)).to(by_values)

        return (change @ whole.coefficients.mT).to(whole.constants), pulled_change

    def _summed(self, by_terms: Tensor) -> Tensor:
        """``2 sum_t rates_t by_terms_t (c_t - z)``, ``b x d``."""
        sums = by_terms @ self._whole.sides
        return torch.addcmul(sums[:, 1:], sums[:, :1], self._points, value=-1.0)


class PairedSums:
    """A `RadialSum` at all pairs of ``b`` and ``M`` inputs, without a graph.

    Args:
        left: The sum with some columns.
        right: The sum with the other ones.
        first: These columns of the inputs, ``b x d'``.
        second: The other ones, ``M x d''``.
    """

    @torch.no_grad()
    def __init__(self, left: _Part, right: _Part, first: Tensor, second: Tensor) -> None:
        self._parts = left, right
        self._first, self._second = left.centered(first), right.centered(second)
        self._left, self._right = left.factors(self._first), right.factors(self._second)

    @torch.no_grad()
    def values(self) -> Tensor:
        """Values ``b x M x L``, in the type of the constants."""
        coefficients, constants = self._parts[0].coefficients, self._parts[0].constants
        parts = []
        for left in self._left.split(self._num_rows(coefficients)):
            products = (left.unsqueeze(1) * coefficients).flatten(0, 1) @ self._right.mT
            parts.append(products.view(len(left), len(coefficients), len(self._right)).mT)
        # Thresholds of a pair side by side, as they are sorted next
        return constants + _joined(parts).to(constants).contiguous()

    @torch.no_grad()
    def pulled(self, by_values: Tensor) -> Tensor:
        """From derivatives by the values ``b x M x L`` to those by the inputs ``b x M x d``.

        With ``R_t`` the derivative by the logarithm of term ``t`` they are
        ``2 sum_t rates_t R_t (centers_t - z)``, first columns first. Of few thresholds the sums
        are products for each; of many, the derivatives by all terms are one product.
        """
        (one, other), coefficients = self._parts, self._parts[0].coefficients
        sides = torch.cat([one.sides, other.sides[:, 1:]], dim=-1)
        few = len(coefficients) <= _FEW
        rows = coefficients.unsqueeze(1) * sides.mT if few else self._right
        num, parts = self._num_rows(rows), []
        for left, by in zip(self._left.split(num), by_values.double().split(num), strict=True):
            if few:
                products = (left[:, None, None] * rows).flatten(0, 2) @ self._right.mT
                products = products.view(len(left), *rows.shape[:2], len(self._right))
                parts.append(products.mul_(by.mT.unsqueeze(2)).sum(dim=1).mT)
            else:
                by_terms = (by @ coefficients).mul_(left.unsqueeze(1)).mul_(self._right)
                parts.append(by_terms @ sides)
        sums = _joined(parts)
        total, split = sums[..., :1], 1 + self._first.shape[-1]
        sums[..., 1:split].addcmul_(total, self._first.unsqueeze(1), value=-1.0)
        sums[..., split:].addcmul_(total, self._second, value=-1.0)
        return sums[..., 1:].to(by_values)

    @staticmethod
    def _num_rows(columns: Tensor) -> int:
        """Inputs at a time of which each makes so many numbers."""
        most = _DEVICE_ELEMENTS if columns.is_cuda else _ELEMENTS
        return max(most // max(columns.numel(), 1), 1)


def _joined(parts: list[Tensor]) -> Tensor:
    """The rows of all, without a copy of a single part."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
