r"""Expectations of any function under a smoothed piecewise distribution, by quadrature.

Closed forms know the integrals of ``(x - c)+``. Of an outcome that is a nonlinear, increasing
function ``g`` of what is predicted, ``E(g(x) - g(c))+`` is an integral over ``x > c`` with the
density of ``x``, which is closed: that of each piece plus noise is the normal or constant density
times a difference of two normal probabilities.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_calib.distributions._normal_functions import (
    TINY,
    log_normal_interval,
    unit_legendre,
)
from botorch_calib.distributions.smoothed import SmoothedPredictive

_EDGE = 5.5  # units of the noise about a knot in which it is felt: beyond is 2e-8
_REACH = 64.0  # tails end where a normal density has fallen by exp(-32)
_ORDER = 16  # nodes on a panel
_DEEP = 25.0  # normal deviations, see `_log_interval`
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
_FAR = 1e100  # stands for infinite knots and thresholds; its square does not overflow


def rule_above(
    distribution: SmoothedPredictive, threshold: Tensor, growth: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Points ``x_i > c`` and ``log w_i`` with ``E[u(x); x > c] = sum_i w_i u(x_i)``, ``N x shape``.

    For ``u`` that is smooth beyond ``c`` and 0 there; ``N`` is 48 for each piece. Three panels of
    Gauss and Legendre's rule cover a piece: one about each end, where noise blurs it, and one
    between. The tails of open pieces are cut where ``exp(growth |x|)`` times their density is
    nothing. The rule is relative: it holds however far out ``c`` is, where the outer piece is open.

    Points depend on the units of the distribution alone, weights on its shape. A derivative by the
    threshold would be 0, and there is none.

    Args:
        distribution: A distribution; one without noise has the ratio 0.
        threshold: ``c``, minus infinity for no threshold.
        growth: Slope of ``log |u|`` far out, nonnegative. Both broadcast against the batch shape.
    """
    predictive, ratio = distribution._in_standard_units()
    scale = distribution.predictive.scale
    if scale is not None:
        threshold, growth = threshold / scale.detach(), growth * scale.detach()
    shape = torch.broadcast_shapes(threshold.shape, ratio.shape, distribution.predictive.batch_shape)

    def first(values: Tensor) -> Tensor:  # the pieces, or their ends
        values = values.view(-1, *[1] * len(shape)) if values.dim() == 1 else values.movedim(-1, 0)
        return values.view(len(values), *[1] * (len(shape) + 1 - values.dim()), *values.shape[1:])

    form, knots = predictive.form, first(predictive.finite_knots)
    ends = form.pad(knots, -_FAR, _FAR)
    low, high = ends[:-1], ends[1:]
    normal = form.is_normal(ends).view(-1, *[1] * len(shape)) > 0
    natural = torch.where(normal, log_normal_interval(low, high), _log_width(low, high, normal))
    log_height = first(predictive.log_masses) - natural

    spread = 1.0 + ratio.square()
    t, log_length = _nodes(low, high, ratio, spread, threshold, growth, form.open_low, form.open_high)
    # Given x, z has the mean x / spread and the deviation r / spread^(1/2) in a normal piece.
    stretch = torch.where(normal, spread, 1.0)
    unit = (ratio * stretch.sqrt()).reciprocal()
    log_share = _log_interval((low * stretch - t) * unit, (high * stretch - t) * unit)
    log_normal = -0.5 * (t.square() / spread + (2.0 * math.pi * spread).log())
    log_weights = log_share + torch.where(normal, log_normal, 0.0)
    log_weights = (log_weights + log_height + log_length).flatten(0, 1)
    points = t.flatten(0, 1)
    return (points if scale is None else points * scale), log_weights


def _log_width(low: Tensor, high: Tensor, normal: Tensor) -> Tensor:
    return (high - low).masked_fill(normal, 1.0).log()


@torch.no_grad()
def _nodes(
    low: Tensor,
    high: Tensor,
    ratio: Tensor,
    spread: Tensor,
    threshold: Tensor,
    growth: Tensor,
    open_low: bool,
    open_high: bool,
) -> tuple[Tensor, Tensor]:
    """Nodes, and logarithms of weight times length, ``48 x K x shape``."""
    threshold = threshold.clamp(-_FAR, _FAR)
    edge, shift, peak = _EDGE * ratio, growth * ratio.square(), growth * spread

    def end_after(knot: Tensor) -> Tensor:
        """Where what the noise carries beyond a knot, and beyond the threshold, has ended."""
        above = (threshold - knot - shift).clamp(min=0.0)
        return knot + shift + (above.square() + edge.square()).sqrt()

    start, stop = low - shift - edge, end_after(high)
    shape = torch.broadcast_shapes(start.shape, stop.shape)
    start, stop = start.expand(shape).clone(), stop.expand(shape).clone()
    if open_low:
        first = -high[0] - edge - peak
        last = -peak - (first.clamp(min=0.0).square() + _REACH * spread).sqrt()
        start[0] = torch.minimum(last, high[0] - shift - edge)
    if open_high:
        first = torch.maximum(threshold, low[-1] - edge) - peak
        last = peak + (first.clamp(min=0.0).square() + _REACH * spread).sqrt()
        stop[-1] = torch.maximum(last, end_after(low[-1]))
    # In the middle where the noise is felt throughout; the tail of an open piece takes two panels.
    middle = 0.5 * (start + stop)
    inner, outer = torch.minimum(low + edge, middle), torch.maximum(high - edge, middle)
    if open_high:
        outer[-1] = stop[-1]
    if open_low:
        inner[0] = start[0] + (0.6 if len(low) > 1 else 0.35) * (outer[0] - start[0])
    if open_high:
        outer[-1] = inner[-1] + 0.4 * (stop[-1] - inner[-1])
    ends = torch.maximum(torch.stack([start, inner, outer, stop]), threshold)
    ends = ends.cummax(dim=0).values
    lengths = ends.diff(dim=0)
    nodes, weights = unit_legendre(_ORDER, ends.dtype, ends.device)
    column = (-1, 1, *[1] * len(shape))
    t = (ends[:-1] + nodes.view(column) * lengths).flatten(0, 1)
    log_length = lengths.clamp(min=TINY).log() + weights.log().view(column)
    return t, log_length.flatten(0, 1)


def _log_interval(low: Tensor, high: Tensor) -> Tensor:
    """``log(Phi(high) - Phi(low))`` for ``low < high``, to 1e-5 in a third of the exact one's time.

    A difference of two tails on the side where it cancels least. Beyond ``_DEEP``, where these
    would underflow at last, by the first terms of ``Phi(-a) = phi(a) (1/a - 1/a^3 + 3/a^5 - ...)``.
    """
    right = (low + high > 0.0).detach()
    near, far = torch.where(right, low, -high), torch.where(right, high, -low)
    root = math.sqrt(0.5)
    share = 0.5 * (torch.erfc(root * near) - torch.erfc(root * far))
    a = near.clamp(min=_DEEP)
    b = torch.maximum(far, a)
    squares = a.square()
    series = squares.reciprocal().mul(3.0).sub(1.0).div(squares).log1p()
    fall = 0.5 * (b - a) * (b + a) + (b / a).log()
    cut = torch.expm1(-fall).neg().clamp(min=TINY).log()
    deep = cut + series - 0.5 * squares - a.log() - _HALF_LOG_2PI
    return torch.where(near > _DEEP, deep, share.clamp(min=TINY).log())
