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


def normal_moments(
    knots: Tensor, masses: Tensor, scale: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and variance of the distribution with the given knots and masses, all pieces normal.

    They are differentiable in the knots and in the scale, to any order.

    Args:
        knots: ``batch_shape x (K - 1)``, finite and increasing, ``K > 1``, float64.
        masses: ``K``.
        scale: Standard deviation of the pieces before truncation, ``batch_shape`` (default: 1).

    Returns:
        Both, ``batch_shape``.
    """
    shape, num = knots.shape[:-1], knots.shape[-1]
    if scale is not None:
        shape = torch.broadcast_shapes(shape, scale.shape)
        knots, scale = knots.expand(*shape, num), scale.expand(shape).reshape(-1)
    rows = knots.reshape(-1, num)
    most = max(len(rows) if rows.is_cuda else _CHUNK // num, 1)
    parts: list[tuple[Tensor, Tensor]] = []
    for part in rows.split(most):
        own = None if scale is None else scale[len(parts) * most :][: len(part)]
        parts.append(NormalMoments.apply(part.mT.contiguous(), masses, own))
    mean, variance = (torch.cat(part).view(shape) for part in zip(*parts, strict=True))
    return mean, variance


class NormalMoments(Function):
    r"""Mean and variance of the distribution with the given knots and masses, all pieces normal.

    With ``a`` and ``b`` of `_EndDensities` a piece has the mean ``mu = a - b`` and the second
    moment ``q = 1 + a low - b high``, and their derivatives are ``dmu/dlow = a (mu - low)``,
    ``dmu/dhigh = b (high - mu)``, ``dq/dlow = a (q - low^2)`` and ``dq/dhigh = b (high^2 - q)``:
    functions of ``a``, ``b`` and the knots, so derivatives of every order follow. There are none by
    the masses. All this is in units of the scale ``s``: for knots ``k``, the mean is ``s M(k / s)``
    and the variance ``s^2 V(k / s)``. Such homogeneous functions have by ``s`` what Euler's theorem
    leaves of those by ``k``.
    """

    @staticmethod
    def forward(
        ctx: Any, knots: Tensor, masses: Tensor, scale: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Both, ``n``.

        Args:
            ctx: Of autograd.
            knots: ``(K - 1) x n``, finite and increasing, ``K > 1``, float64.
            masses: ``K``.
            scale: ``n``, or None for 1.
        """
        inner = knots if scale is None else knots / scale
        a, b = _end_densities(inner)
        mean, second, center = _piece_moments(inner, a, b, masses)
        variance = _variance(mean, second, center, masses)
        ctx.save_for_backward(knots, masses, scale, inner, a, b, mean, second, center, variance)
        if scale is None:
            return center, variance
        return center * scale, variance * scale.square()

    @staticmethod
    def backward(
        ctx: Any, by_mean: Tensor, by_variance: Tensor
    ) -> tuple[Tensor, None, Tensor | None]:
        """See the class."""
        knots, masses, scale, inner, a, b, mean, second, center, variance = ctx.saved_tensors
        if torch.is_grad_enabled():
            inner = knots if scale is None else knots / scale
            a, b = _EndDensities.apply(inner)
            mean, second, center = _piece_moments(inner, a, b, masses)
            variance = _variance(mean, second, center, masses)
        if scale is not None:
            by_variance = by_variance * scale
        # Of the mean, and of the second moment, which the mean around which it is taken enters.
        factor = by_mean - 2.0 * by_variance * center
        within = torch.addcmul(factor * mean, by_variance, second)
        at_knots = torch.addcmul(factor, by_variance, inner) * inner
        weights = masses.unsqueeze(-1)
        lower = (within[1:] - at_knots) * a[1:] * weights[1:]
        by_knots = torch.addcmul(lower, (at_knots - within[:-1]) * b[:-1], weights[:-1])
        if scale is None:
            return by_knots, None, None
        # Euler: degree 1 and 2, of which ``by_variance`` holds one factor already.
        by_scale = by_mean * center + 2.0 * by_variance * variance - (by_knots * inner).sum(dim=0)
        return by_knots, None, by_scale


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


def _variance(mean: Tensor, second: Tensor, center: Tensor, masses: Tensor) -> Tensor:
    """That of all, from mean and second moment of each piece and the mean of all."""
    within = torch.addcmul(second, mean, mean, value=-1.0).clamp(min=0.0)
    deviation = mean - center
    return masses @ torch.addcmul(within, deviation, deviation)


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
