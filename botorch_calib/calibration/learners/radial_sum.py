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

# Numbers that are held at a time beside the results, on the way to values at all pairs.
_ELEMENTS = 2**21


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

    @torch.no_grad()
    def at_pairs(
        self,
        first: Tensor,
        second: Tensor,
        columns: tuple[list[int], list[int]],
        gradients: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Values at all pairs and their derivatives, without a graph.

        Args:
            first: Some columns of the inputs, ``b x d'``.
            second: The other ones, ``M x d''``.
            columns: Which columns these are.
            gradients: Whether derivatives are wanted.

        Returns:
            Values ``b x M x L``, in the type of the constants, and derivatives by the first
            columns and then by the second ones, ``b x d x L x M`` (or nothing).
        """
        right = self._side(second, columns[1], gradients)
        num = (1 + first.shape[-1]) * max(self.coefficients.numel(), 1)
        parts = [
            self._with_rows(self._side(part, columns[0], gradients), right, gradients)
            for part in first.split(max(_ELEMENTS // num, 1))
        ]
        values, slopes = (torch.cat(part) for part in zip(*parts, strict=True))
        return self.constants + values.to(self.constants), slopes.to(self.constants)

    def _with_rows(self, left: Tensor, right: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """Values without the constants ``b x M x L``, and derivatives ``b x d x L x M``."""
        b, num, M = len(left), self.coefficients.shape[-1], len(right)
        # b x (1 + d') x L x T
        rows = left.unsqueeze(-2) * self.coefficients.double().mT
        values = (rows.flatten(0, 2) @ right[:, 0].mT).view(b, left.shape[1], num, M)
        if not gradients:
            return values[:, 0].mT, values[:, 1:]
        of_second = rows[:, 0].flatten(0, 1) @ right[:, 1:].transpose(0, 1).flatten(0, 1).mT
        of_second = of_second.view(b, num, right.shape[1] - 1, M).transpose(1, 2)
        return values[:, 0].mT, torch.cat([values[:, 1:], of_second], dim=1)

    def _side(self, points: Tensor, columns: list[int], gradients: bool) -> Tensor:
        """Factors ``m x 1 x T`` of the terms, or with their derivatives ``m x (1 + d') x T``."""
        differences = points.double().unsqueeze(-1) - self.centers[:, columns].double().mT
        rates = self.rates.double()
        factors = differences.square().sum(dim=-2, keepdim=True).mul_(-rates).exp_()
        if not gradients:
            return factors
        return torch.cat([factors, differences.mul_(-2.0 * rates).mul_(factors)], dim=-2)
