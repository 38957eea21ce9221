"""Truncated normal pieces: their densities at both ends, and the moments that follow from these."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from botorch_calib.distributions._normal_functions import CHUNK, SQRT_2PI, TINY, mills_ratio


def normal_moments(ends: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Weighted sums over normal pieces of the mean, and of the mean square less 1, ``shape``.

    With ``a`` and ``b`` of `_EndDensities` the mean of a piece is ``a - b``. Ends are those of
    `NormalShares`, ``(K + 1) x shape``, and weights, ``K x shape``, broadcast. Derivatives are of
    every order. Many pieces pass through a CPU's cache in parts.
    """
    if ends.numel() > CHUNK and not ends.is_cuda and weights.shape[1:].numel() == 1:
        columns, own = ends.flatten(1).split(CHUNK // len(ends), dim=1), weights.view(-1, 1)
        found = zip(*(normal_moments(part, own) for part in columns), strict=True)
        mean, square = (torch.cat(parts).view(ends.shape[1:]) for parts in found)
        return mean, square
    a, b = _EndDensities.apply(ends)
    squares = torch.addcmul(a * ends[:-1], b, ends[1:], value=-1)
    mean = torch.linalg.vecdot(weights, a - b, dim=0)
    return mean, torch.linalg.vecdot(weights, squares, dim=0)


class _EndDensities(Function):
    """Densities of each piece at its ends, ``a = phi(low) / N`` and ``b = phi(high) / N``.

    From ``dN/dlow = -phi(low)`` and ``dN/dhigh = phi(high)`` follow ``da/dlow = a (a - low)``,
    ``da/dhigh = -a b``, ``db/dlow = a b`` and ``db/dhigh = -b (b + high)``.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, ends: Tensor) -> tuple[Tensor, Tensor]:
        shares = NormalShares(ends)
        ctx.save_for_backward(ends, shares.at_low, shares.at_high)
        return shares.at_low, shares.at_high

    @staticmethod
    def backward(ctx: Any, by_a: Tensor, by_b: Tensor) -> Tensor:
        ends, a, b = ctx.saved_tensors
        total = torch.addcmul(by_a * a, by_b, b)
        by_low = a * torch.addcmul(total, by_a, ends[:-1], value=-1)
        by_high = b * torch.addcmul(total, by_b, ends[1:])
        return torch.cat([by_low[:1], by_low[1:] - by_high[:-1], -by_high[-1:]])


class NormalShares:
    """Normal pieces as differences of the tails beyond their ends, without a graph.

    With the sign of the end in front of its tail, the difference is the mass of a piece on either
    side of zero; for the piece around zero the whole normal distribution is added to that.

    Ends are increasing and finite (`FAR` for infinite ones), ``(K + 1) x n``, float64. ``mills``
    has the Mills ratios of their distances from zero, ``at_low`` and ``at_high`` the densities of
    each piece at its ends, and ``around`` is 1 over the mass of the piece around zero, else 0.
    """

    def __init__(self, ends: Tensor) -> None:
        sign = ends.sign()
        around = sign.diff(dim=0).mul_(0.5)  # 1/2 where zero is an end
        self.mills, half = mills_ratio(ends.abs()), (ends * ends).mul_(0.5)
        tails = sign.mul_(self.mills)
        # In units of the density at the end nearer to zero, so that none underflows
        depth = torch.minimum(half[:-1], half[1:]).mul_(1.0 - around)
        a, b = (depth - half[:-1]).exp_(), depth.sub_(half[1:]).exp_()
        self.around = around.mul_(SQRT_2PI)
        natural = torch.addcmul(around, a, tails[:-1]).addcmul_(b, tails[1:], value=-1)
        natural.clamp_(min=TINY).reciprocal_()
        around.mul_(natural)
        self.at_low, self.at_high = a.mul_(natural), b.mul_(natural)
