"""Densities of truncated normal pieces at their ends, relative to their masses: `end_densities`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from botorch_calib.distributions._normal_functions import FAR, SQRT_2PI, TINY, mills_ratio


def end_densities(ends: Tensor) -> tuple[Tensor, Tensor]:
    """``a = phi(low) / N`` and ``b = phi(high) / N`` of normal pieces, each ``K x shape``.

    Here ``N = Phi(high) - Phi(low)``. Derivatives are of every order.

    Args:
        ends: Increasing, ``(K + 1) x shape``, float64; the outer ones may be infinite.
    """
    rows = ends.clamp(-FAR, FAR).reshape(len(ends), -1)
    at_low, at_high = _EndDensities.apply(rows)
    shape = (len(ends) - 1, *ends.shape[1:])
    return at_low.view(shape), at_high.view(shape)


class _EndDensities(Function):
    """`end_densities`, with the derivatives written down.

    From ``dN/dlow = -phi(low)`` and ``dN/dhigh = phi(high)`` follow ``da/dlow = a (a - low)``,
    ``da/dhigh = -a b``, ``db/dlow = a b`` and ``db/dhigh = -b (b + high)``.
    """

    @staticmethod
    def forward(ctx: Any, ends: Tensor) -> tuple[Tensor, Tensor]:
        shares = NormalShares(ends)
        ctx.save_for_backward(ends, shares.at_low, shares.at_high)
        return shares.at_low, shares.at_high

    @staticmethod
    def backward(ctx: Any, by_a: Tensor, by_b: Tensor) -> Tensor:
        ends, a, b = ctx.saved_tensors
        total = by_a * a + by_b * b
        by_low = a * (total - by_a * ends[:-1])
        by_high = b * (total + by_b * ends[1:])
        return torch.cat([by_low[:1], by_low[1:] - by_high[:-1], -by_high[-1:]])


class NormalShares:
    """Normal pieces as differences of the tails beyond their ends, without a graph.

    With the sign of the end in front of its tail, the difference is the mass of a piece on either
    side of zero; for the piece around zero the whole normal distribution is added to that.

    Args:
        ends: Increasing and finite (`FAR` for infinite ones), ``(K + 1) x n``, float64.

    Attributes:
        mills: Mills ratios of the distances of the ends from zero, of their shape.
        around: 1 over the mass of the piece around zero, 0 for the others, ``K x n``.
        at_low: Density of the piece at its lower end.
        at_high: Density of the piece at its upper end.
    """

    def __init__(self, ends: Tensor) -> None:
        ends = ends.clamp(-FAR, FAR)
        sign = ends.sign()
        around = sign.diff(dim=0).mul_(0.5)  # 1/2 where zero is an end
        self.mills, half = mills_ratio(ends.abs()), (ends * ends).mul_(0.5)
        tails = self.mills * sign
        # In units of the density at the end nearer to zero, so that none underflows
        depth = torch.minimum(half[:-1], half[1:]).mul_(1.0 - around)
        a, b = (depth - half[:-1]).exp_(), (depth - half[1:]).exp_()
        beyond = a * tails[:-1] - b * tails[1:]
        natural = torch.add(beyond, around, alpha=SQRT_2PI).clamp_(min=TINY).reciprocal_()
        self.around = around.mul_(natural).mul_(SQRT_2PI)
        self.at_low, self.at_high = a.mul_(natural), b.mul_(natural)
