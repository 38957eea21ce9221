r"""Mean and variance of many normal pieces with common masses, with the derivatives written down.

`PiecewisePredictive.moments` finds them for any pieces, in logarithms and with a graph through each
step. A recalibrated distribution has twenty pieces, and a localized one differs by point. Within,
tensors have the knots, or the pieces, in their first dimension.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from botorch_calib.distributions._normal_functions import mills_ratio

_SQRT_2PI = math.sqrt(2.0 * math.pi)
_LEAST = torch.finfo(torch.float64).tiny
_CHUNK = 2**15  # knots at a time, few enough to stay in a CPU's cache


def normal_moments(knots: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and variance of the distribution with the given knots and masses, all pieces normal.

    They are differentiable in the knots, to any order.

    Args:
        knots: ``batch_shape x (K - 1)``, finite and increasing, ``K > 1``, float64.
        masses: ``K``.

    Returns:
        Both, ``batch_shape``.
    """
    rows = knots.reshape(-1, knots.shape[-1])
    most = len(rows) if rows.is_cuda else _CHUNK // rows.shape[-1]
    parts = [NormalMoments.apply(part.mT.contiguous(), masses) for part in rows.split(max(most, 1))]
    mean, variance = (torch.cat(part).view(knots.shape[:-1]) for part in zip(*parts, strict=True))
    return mean, variance


class NormalMoments(Function):
    r"""Mean and variance of the distribution with the given knots and masses, all pieces normal.

    With ``a`` and ``b`` of `_EndDensities` a piece has the mean ``mu = a - b`` and the second
    moment ``q = 1 + a low - b high``, and their derivatives are ``dmu/dlow = a (mu - low)``,
    ``dmu/dhigh = b (high - mu)``, ``dq/dlow = a (q - low^2)`` and ``dq/dhigh = b (high^2 - q)``:
    functions of ``a``, ``b`` and the knots, so derivatives of every order follow. There are none by
    the masses.
    """

    @staticmethod
    def forward(ctx: Any, knots: Tensor, masses: Tensor) -> tuple[Tensor, Tensor]:
        """Both, ``n``.

        Args:
            ctx: Of autograd.
            knots: ``(K - 1) x n``, finite and increasing, ``K > 1``, float64.
            masses: ``K``.
        """
        a, b = _end_densities(knots)
        mean, second, center = _piece_moments(knots, a, b, masses)
        spread = torch.addcmul(second, mean, mean, value=-1.0).clamp_(min=0.0)
        deviation = mean - center
        spread.addcmul_(deviation, deviation)
        ctx.save_for_backward(knots, masses, a, b, mean, second, center)
        return center, masses @ spread

    @staticmethod
    def backward(ctx: Any, by_mean: Tensor, by_variance: Tensor) -> tuple[Tensor, None]:
        """See the class."""
        knots, masses, a, b, mean, second, center = ctx.saved_tensors
        if torch.is_grad_enabled():
            a, b = _EndDensities.apply(knots)
            mean, second, center = _piece_moments(knots, a, b, masses)
        # Of the mean, and of the second moment, which the mean around which it is taken enters.
        factor = by_mean - 2.0 * by_variance * center
        inner = torch.addcmul(factor * mean, by_variance, second)
        at_knots = torch.addcmul(factor, by_variance, knots) * knots
        weights = masses.unsqueeze(-1)
        lower = (inner[1:] - at_knots) * a[1:] * weights[1:]
        return torch.addcmul(lower, (at_knots - inner[:-1]) * b[:-1], weights[:-1]), None


class _EndDensities(Function):
    """`_end_densities`, differentiable to any order.

    From ``dN/dlow = -phi(low)`` and ``dN/dhigh = phi(high)`` follow ``da/dlow = a (a - low)``,
    ``da/dhigh = -a b``, ``db/dlow = a b`` and ``db/dhigh = -b (b + high)``.
    """

    @staticmethod
    def forward(ctx: Any, knots: Tensor) -> tuple[Tensor, Tensor]:
        a, b = _end_densities(knots)
        ctx.save_for_backward(knots, a, b)
        return a, b

    @staticmethod
    def backward(ctx: Any, by_a: Tensor, by_b: Tensor) -> Tensor:
        knots, a, b = ctx.saved_tensors
        total = by_a * a + by_b * b
        lower = a[1:] * (total[1:] - by_a[1:] * knots)
        return lower - b[:-1] * (total[:-1] + by_b[:-1] * knots)


def _piece_moments(
    knots: Tensor, a: Tensor, b: Tensor, masses: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and second moment of each piece, and the mean of all."""
    mean, ends = a - b, pad(knots, (0, 0, 1, 1))
    second = torch.addcmul(a * ends[:-1] + 1.0, b, ends[1:], value=-1.0)
    return mean, second, masses @ mean


def _end_densities(knots: Tensor) -> tuple[Tensor, Tensor]:
    """``a = phi(low) / N`` and ``b = phi(high) / N`` of the pieces, each ``K x n``.

    Here ``N`` is the natural mass ``Phi(high) - Phi(low)``. It and the densities are in units of
    the density at the end of the piece nearer to zero, so that none underflows however far out.
    """
    sign = knots.sign()
    # 1 where zero is inside the piece, 1/2 where it is an end, and else 0
    around = pad(pad(sign, (0, 0, 1, 0), value=-1.0), (0, 0, 0, 1), value=1.0).diff(dim=0)
    around.mul_(0.5)
    tails = pad(mills_ratio(knots.abs()).mul_(sign), (0, 0, 1, 1))
    half = pad((knots * knots).mul_(0.5), (0, 0, 1, 1), value=math.inf)
    depth = torch.minimum(half[:-1], half[1:]).mul_(1.0 - around)
    a = (depth - half[:-1]).exp_()
    b = depth.sub_(half[1:]).exp_()
    natural = around.mul_(_SQRT_2PI)
    natural.addcmul_(a, tails[:-1]).addcmul_(b, tails[1:], value=-1.0).clamp_(min=_LEAST)
    return a.div_(natural), b.div_(natural)
