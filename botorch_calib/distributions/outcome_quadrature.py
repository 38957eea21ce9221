r"""Expectations of any function under a smoothed piecewise distribution, by quadrature.

For a nonlinear, increasing outcome ``g(x)`` and a threshold ``c``, ``E(g(x) - g(c))+`` is an
integral over ``x > c``. The density of ``x`` has a closed form: for each piece with noise, it is a
normal or constant density times a difference of two normal probabilities.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from botorch_calib.distributions import _normal_functions as nf
from botorch_calib.distributions._denoised_integrals import held_ratio
from botorch_calib.distributions.denoised_piecewise import UnsmoothedPredictive
from botorch_calib.distributions.form import PiecewiseForm

_EDGE = 5.5  # reach of the noise in standard deviations; the probability beyond it is 2e-8
_SURE = 9.0  # larger reach; the probability beyond it is 1e-19
_REACH = 64.0  # tails end where a normal density has decreased by a factor of exp(32)
_LONGEST = 10.0  # longest piece, in standard deviations, of which one panel covers the middle
_FAR = 1e100  # replaces infinite knots and thresholds; its square does not overflow


def rule_above(
    distribution: UnsmoothedPredictive,
    threshold: Tensor,
    growth: Tensor,
    order: int = 16,
    kinks: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return points ``x_i > c`` and ``log w_i`` with ``E[u(x); x > c] = sum_i w_i u(x_i)``.

    Points and log weights are ``N x shape``. ``u`` is 0 at ``c``, and smooth above ``c`` except at
    ``kinks``. Panels of Gauss-Legendre rules cover each piece between two kinks: one about each
    end, within reach of the noise, and one or two between these. The panels of a normal piece end
    where ``exp(growth |x|)`` times the density is negligible. If the last knot is infinite, the
    relative error is small for any ``c``.

    Points are differentiable in the distribution's scale. Log weights are differentiable in its
    knots, its masses and the ratio of the noise to the scale. Neither is differentiable in the
    threshold, where ``u`` is 0.

    Args:
        distribution: The distribution of ``x``, smoothed or not.
        threshold: ``c``, broadcasting against the batch shape; minus infinity for no threshold.
        growth: Nonnegative slope of ``log |u|`` for large ``|x|``, broadcasting against the batch
            shape.
        order: Number of nodes on a panel. Relative errors are up to about 3e-6 with 16 nodes and
            1e-5 with 12, unless ``growth`` times the deviation of ``x`` exceeds about 2.
        kinks: Increasing points at which ``u`` is not smooth, ``num x ...``. Panels end there.
    """
    predictive, noise = distribution.predictive.standardized(), distribution.noise
    noise = torch.zeros_like(distribution._scale) if noise is None else noise
    scale, ratio = held_ratio(distribution._scale, noise)
    threshold, growth = threshold / scale.detach(), growth * scale.detach()
    shapes = threshold.shape, ratio.shape, distribution.predictive.batch_shape
    shape = torch.broadcast_shapes(*shapes)
    # Each row is one integral: from the threshold or a kink to the next kink, or to infinity.
    starts = [threshold, *(kink / scale.detach() for kink in ([] if kinks is None else kinks))]
    threshold = torch.stack([each.expand(shape) for each in starts]).cummax(dim=0).values
    ceiling = torch.cat([threshold[1:], torch.full_like(threshold[:1], _FAR)])
    shape = threshold.shape

    def first(values: Tensor) -> Tensor:  # makes the dimension of pieces or knots the first
        values = values.view(-1, *[1] * len(shape)) if values.dim() == 1 else values.movedim(-1, 0)
        return values.view(len(values), *[1] * (len(shape) + 1 - values.dim()), *values.shape[1:])

    form, knots = predictive.form, first(predictive.finite_knots)
    ends = form.pad(knots, -_FAR, _FAR)
    low, high = ends[:-1], ends[1:]
    normal = form.is_normal(ends.device).view(-1, *[1] * len(shape))
    spread = torch.where(normal, 1.0 + ratio.square(), 1.0)
    unit = (ratio * spread.sqrt()).reciprocal()
    # The log height of a piece's density is log(mass / natural mass) (see `piece_logs`).
    zero = ratio.new_zeros([1] * (ends.dim() + 1))
    natural = _LogShare.apply(zero, low, high, torch.ones_like(zero[0])).squeeze(0)
    natural = natural + 0.5 * (2.0 * math.pi * spread).log()
    if any(form.uniform):
        natural = torch.where(normal, natural, (high - low).masked_fill(normal, 1.0).log())
    log_masses = first(predictive.log_masses)
    log_height = log_masses - natural

    relative = log_height - log_masses[-1]
    t, log_length, piece = _nodes(
        form, normal, low, high, relative, ratio, spread, threshold, ceiling, growth, order
    )
    rate = spread * unit
    start, end, unit, log_height, fall = (
        v.index_select(0, piece)
        for v in (low * rate, high * rate, unit, log_height, -0.5 * normal / spread)
    )
    log_share = _LogShare.apply(t, start, end, unit)
    log_weights = torch.addcmul(log_share, t.square(), fall) + (log_height + log_length)
    return t.flatten(0, 2) * scale, log_weights.flatten(0, 2)


@torch.no_grad()
def _nodes(
    form: PiecewiseForm,
    normal: Tensor,
    low: Tensor,
    high: Tensor,
    log_relative_height: Tensor,
    ratio: Tensor,
    spread: Tensor,
    threshold: Tensor,
    ceiling: Tensor,
    growth: Tensor,
    order: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes and log weights, and the index of the piece of each panel.

    The shapes are twice ``order x num_panels x shape``, and ``num_panels``. The log weights do not
    include the density. Each integral is from ``threshold`` to ``ceiling``. ``normal`` says which
    pieces are normal. ``spread`` is ``1 + ratio^2`` for a normal piece and 1 for a uniform piece.
    ``log_relative_height`` is a piece's log height minus the log mass of the last piece.
    """
    threshold = threshold.clamp(-_FAR, _FAR)
    edge, shift = _EDGE * ratio, growth * ratio.square()
    peak = growth + shift

    def end_after(knot: Tensor) -> Tensor:
        """Return the point beyond which noise carries negligible mass from below ``knot``."""
        above = (threshold - knot - shift).clamp(min=0.0)
        return knot + shift + (above.square() + edge.square()).sqrt()

    start, stop = low - shift - edge, end_after(high)
    if form.covered and not any(form.uniform):
        # Panels of a piece end where its density is negligible compared with the density of the
        # last piece (`share`), but not before the noise from the piece ends or the mean of ``z``
        # given ``x`` enters the last piece, whichever is first (`reach`).
        sure = (_SURE**2 + 2.0 * log_relative_height.clamp(min=0.0)).sqrt()
        share = torch.addcmul(sure * ratio * spread.sqrt(), high, spread)
        reach = torch.minimum(high + shift + _SURE * ratio, low[-1] * spread)
        stop = torch.minimum(stop, torch.maximum(share, reach))
    # Panels of a normal piece also end where its own density is negligible.
    first = (-high - edge - peak).clamp(min=0.0)
    last = -peak - (first.square() + _REACH * spread).sqrt()
    start = torch.where(normal, start.maximum(last.minimum(high - shift - edge)), start)
    first = (torch.maximum(threshold, low - edge) - peak).clamp(min=0.0)
    last = peak + (first.square() + _REACH * spread).sqrt()
    stop = torch.where(normal, stop.minimum(last.maximum(end_after(low))), stop)
    # If the noise reaches all of a piece, the panels about its two ends meet in the middle.
    middle = 0.5 * (start + stop)
    inner, outer = torch.minimum(low + edge, middle), torch.maximum(high - edge, middle)
    # If the density is negligible at an end, the first or last panel is a tail, which begins at 0,
    # or at the panel about the other end. Three equal panels cover a piece with two tails.
    has_low_tail, has_high_tail = low + edge < start, high - edge > stop
    is_long = normal & (outer - inner > _LONGEST * spread.sqrt()) & ~(has_low_tail | has_high_tail)
    inner = torch.where(has_low_tail, outer.clamp(max=0.0).maximum(start), inner)
    outer = torch.where(has_high_tail, inner.clamp(min=0.0).minimum(stop), outer)
    has_tails, third = has_low_tail & has_high_tail, (stop - start) / 3
    inner = torch.where(has_tails, start + third, inner)
    outer = torch.where(has_tails, stop - third, outer)
    # Two panels cover the middle of a long piece. Otherwise one of them is empty.
    middle = torch.where(is_long, middle, inner)
    # Empty panels are moved to where the density is finite.
    ends = torch.stack(torch.broadcast_tensors(start, inner, middle, outer, stop))
    ends = torch.maximum(ends, torch.minimum(threshold, stop))
    ends = torch.minimum(ends, torch.maximum(ceiling, start)).cummax(dim=0).values
    lengths, shape = ends.diff(dim=0), ends.shape[1:]
    nodes, log_rule = _rules(order, ends.dtype, ends.device)
    begin, lengths = ends[:-1].flatten(0, 1), lengths.flatten(0, 1)
    panel = torch.arange(len(lengths), device=lengths.device)
    # Omit panels that are empty at all points, unless that would synchronize with a device.
    if lengths.device.type == "cpu":
        in_use = (lengths > 0.0).view(len(panel), -1).any(dim=1)
        in_use[0] |= ~in_use.any()  # at least one panel
        panel = panel[in_use]
        begin, lengths = begin[panel], lengths[panel]
    kind, piece = panel // len(low), panel % len(low)
    column = (order, len(kind), *[1] * (len(shape) - 1))
    t = begin + nodes.index_select(1, kind).view(column) * lengths
    log_length = lengths.clamp(min=nf.TINY).log() + log_rule.index_select(1, kind).view(column)
    return t, log_length, piece


@nf.cached_constant
def _rules(order: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return nodes on [0, 1] and log weights of the four panels of a piece, ``order x 4`` each."""
    inner, weights = nf.unit_legendre(order, dtype, device)
    falling, graded = nf.graded_rule(order, dtype, device)
    nodes = torch.stack([1.0 - falling[:, 0], inner, inner, falling[:, 0]], dim=1)
    return nodes, torch.stack([graded, weights, weights, graded], dim=1).log()


class _LogShare(Function):
    """``log(Phi(high - unit t) - Phi(low - unit t))``, with first derivatives except in ``t``."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, low: Tensor, high: Tensor, unit: Tensor) -> Tensor:
        ends = [torch.addcmul(end, t, unit, value=-1) for end in (low, high)]
        value = nf.quick_log_interval(*ends)
        ctx.save_for_backward(t, *ends, value)
        ctx.shapes = low.shape, high.shape, unit.shape
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        t, *ends, value = ctx.saved_tensors
        by_low, by_high = (
            end.square().mul_(-0.5).sub_(value).sub_(nf.HALF_LOG_2PI).exp_().mul_(grad)
            for end in ends
        )
        sums = -by_low.sum(dim=0), by_high.sum(dim=0), by_low.sub_(by_high).mul_(t).sum(dim=0)
        return (None, *(by.sum_to_size(s) for by, s in zip(sums, ctx.shapes, strict=True)))
