"""Densities of truncated normal pieces at their ends, and the moments computed from them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from botorch_calib.distributions._normal_functions import CHUNK, SQRT_2PI, TINY, mills_ratio


def normal_moments(ends: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return weighted sums over normal pieces: of the means, and of the mean squares minus 1.

    With ``a`` and ``b`` as in `_EndDensities`, the mean of a piece is ``a - b``. Both results have
    the shape ``shape`` and derivatives of every order. Large inputs are split into parts that fit
    into a CPU's cache.

    Args:
        ends: Ends of the pieces as in `NormalShares`, ``(K + 1) x shape``.
        weights: Weights of the pieces, which broadcast to ``K x shape``.
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

    ``N = Phi(high) - Phi(low)`` is the natural mass of the piece. Since ``dN/dlow = -phi(low)`` and
    ``dN/dhigh = phi(high)``, the derivatives are ``da/dlow = a (a - low)``, ``da/dhigh = -a b``,
    ``db/dlow = a b`` and ``db/dhigh = -b (b + high)``.
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

    The tail of an end is the normal mass beyond it, on the side away from zero, with the sign of
    the end. The mass of a piece is the tail of its lower end minus the tail of its upper end. For
    the piece around zero, the mass of the whole normal distribution is added.

    Args:
        ends: Increasing finite ends (`FAR` for infinite ends), ``(K + 1) x n``, float64.

    Attributes:
        mills: Mills ratios of the absolute values of the ends.
        at_low, at_high: Density of each piece, normalised to mass 1, at its lower and upper end.
        around: Reciprocal of the natural mass of the piece around zero; 0 for other pieces.
    """

    def __init__(self, ends: Tensor) -> None:
        sign = ends.sign()
        around = sign.diff(dim=0).mul_(0.5)  # 1/2 where zero is an end
        self.mills, half = mills_ratio(ends.abs()), (ends * ends).mul_(0.5)
        tails = sign.mul_(self.mills)
        # Natural masses are in units of the density at the end nearer to zero, to avoid underflow.
        depth = torch.minimum(half[:-1], half[1:]).mul_(1.0 - around)
        a, b = (depth - half[:-1]).exp_(), depth.sub_(half[1:]).exp_()
        self.around = around.mul_(SQRT_2PI)
        natural = torch.addcmul(around, a, tails[:-1]).addcmul_(b, tails[1:], value=-1)
        natural.clamp_(min=TINY).reciprocal_()
        around.mul_(natural)
        self.at_low, self.at_high = a.mul_(natural), b.mul_(natural)
