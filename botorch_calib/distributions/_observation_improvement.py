r"""Improvement under a piecewise distribution without noise, with its derivatives.

Of the pieces of ``z`` only the one that holds ``x`` and totals over those above it matter: with
masses ``m_j`` and means ``mu_j``,

    ``E(z - x)+ = m_own e + sum_above m_j (mu_j - x)``,   ``P(z > x) = m_own s + sum_above m_j``.

The piece that holds ``x``, cut off there, is a piece on ``[x, k]`` with its upper knot ``k``, and
so two numbers of an interval suffice: its natural mass (see `_Moments`) and the offset of its
mean from its lower end. All terms are positive, so no digits are lost, and the own piece is
added on a logarithmic scale, so that an excess of ``exp(-700)`` keeps its digits.

Tensors here have the pieces, or the knots, in their first dimension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from botorch.utils.probability.utils import log_phi
from torch import Tensor
from torch.autograd import Function

from botorch_calib.distributions._normal_functions import (
    LEAST,
    LOG_ZERO,
    TINY,
    first_tails,
    less,
)
from botorch_calib.distributions.form import PiecewiseForm

_SQRT_2PI = math.sqrt(2 * math.pi)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_FAR = 1e140  # stands for an infinite knot; its square does not overflow
# Width plus change of the log density below which a piece is a series about its middle. The
# differences have then lost a factor of 1 / 0.01^2 of 1e-15, since the offset cancels twice, and
# the series leaves out terms like 0.005^4 / 40: both ways keep 1e-11 there.
_NARROW = 0.01
_THIN = 1e-200  # keeps the density of a piece that rounding made empty finite


class ObservationIntegrals(Function):
    """``log E(z - x)+`` and ``log P(z > x)``, differentiable to any order.

    The first derivatives are in closed form, with ``d e / d k = +-f(k) ((k - x)+ - e)`` for the
    excess ``e`` of a piece and the density ``f`` in it at its upper or lower knot. Where they are
    to be differentiated again, the graph of `_integrals` takes their place.

    Args:
        x: ``n`` numbers, float64.
        knots: ``num_finite_knots x n``.
        masses: ``num_pieces x n``; may hold zeros.
        form: Form of the distribution, which is not a single normal piece without bounds.

    Returns:
        Two tensors of shape ``n``; both are `LOG_ZERO` where nothing lies above ``x``.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, knots: Tensor, masses: Tensor, form: PiecewiseForm
    ) -> tuple[Tensor, Tensor]:
        place = _locate(x, knots, masses, form)
        log_mass, offset, at_low, at_high = _moments(*place.interval)
        parts = _parts(x, masses, place, log_mass, offset)
        log_excess, log_survival = logs = _log_integrals(parts).unbind()
        where = (place.ends, place.own, place.is_above)
        ctx.save_for_backward(x, knots, masses, *logs, *where, *parts, offset, at_low, at_high)
        ctx.form = form
        return log_excess, log_survival

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, knots, masses, *logs, ends, own, is_above = ctx.saved_tensors[:8]
        needed = ctx.needs_input_grad[:3]
        if torch.is_grad_enabled():
            inputs = [v for v, need in zip((x, knots, masses), needed, strict=True) if need]
            values = _integrals(x, knots, masses, ctx.form)
            found = iter(torch.autograd.grad(values, inputs, grads, create_graph=True))
            return (*(next(found) if need else None for need in needed), None)
        parts, moments = _Parts(*ctx.saved_tensors[8:13]), ctx.saved_tensors[13:]
        units = [_shares(grad, -log) for grad, log in zip(grads, logs, strict=True)]
        log_owns = (parts.log_share + parts.offset.log(), parts.log_share)
        # What a unit of the own piece's mass adds to the results
        owns = [_shares(g, a - b) for g, a, b in zip(grads, log_owns, logs, strict=True)]
        by_masses = None
        if needed[2]:
            by_masses = is_above * torch.addcmul(units[1], units[0], parts.rise)
            by_masses.scatter_add_(0, own, (owns[0] + owns[1]).unsqueeze(0))
            by_masses.masked_fill_(logs[0] <= 0.5 * LOG_ZERO, 0.0)
        owns = [own_share * parts.mass for own_share in owns]
        by_x, by_knots = _slopes(x, ends, own, ctx.form, parts, moments, units[0], owns)
        return by_x if needed[0] else None, by_knots if needed[1] else None, by_masses, None


def _shares(weight: Tensor, log: Tensor) -> Tensor:
    """``weight exp(log)``, without overflow."""
    return log.clamp(LEAST, -LEAST).exp_().mul_(weight)


def _slopes(
    x: Tensor,
    ends: Tensor,
    own: Tensor,
    form: PiecewiseForm,
    parts: _Parts,
    moments: Sequence[Tensor],
    unit: Tensor,
    owns: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Derivatives by ``x`` and by the finite knots.

    A unit of excess in the pieces above ``x`` adds ``unit`` to the result; the own piece's excess
    and survival have added ``owns`` to it (all of shape ``n``).
    """
    offset, at_low, at_high = moments
    (excess, survival), total = owns, owns[0] + owns[1]
    scale = parts.above * unit
    by_low = (at_low[:-1] * offset[:-1]).mul_(scale)
    by_high = (ends.diff(dim=0) - offset[:-1]).mul_(at_high[:-1]).mul_(scale)
    # The own piece from x to its upper knot, against all of it
    steep = excess / parts.offset
    width = ends.gather(0, own + 1).squeeze(0) - x
    up = (steep * width + survival) * at_high[-1]
    by_low.scatter_add_(0, own, at_low.gather(0, own).mul_(total))
    by_high.scatter_add_(0, own, torch.sub(up, at_high.gather(0, own).mul_(total)))
    by_ends = torch.cat([by_low, torch.zeros_like(by_low[:1])])
    by_ends[1:].add_(by_high)
    first, stop = int(form.open_low), len(ends) - int(form.open_high)
    by_x = torch.addcmul(steep, survival, at_low[-1]).add_(scale.sum(dim=0)).neg_()
    return by_x, by_ends[first:stop]


class _Place(NamedTuple):
    """Where ``x`` lies in a distribution."""

    ends: Tensor  # all knots, far ones for the infinite, (num_pieces + 1) x n
    start: Tensor  # x, or any point of the piece `own` where x lies in none
    own: Tensor  # index of the piece that holds x, 1 x n
    normal: Tensor | None  # 1 for normal and 0 for uniform pieces, then the own one; or all are
    is_above: Tensor  # 1 for pieces above x and else 0, num_pieces x n
    outside: Tensor | None  # where x lies in no piece; None if the support has no bounds

    @property
    def interval(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Arguments of `_moments`."""
        return self.ends, self.start, self.own, self.normal


class _Parts(NamedTuple):
    """What lies above ``x``; of the shape ``n`` but for the first two, ``num_pieces x n``."""

    above: Tensor  # masses of the pieces above x, else 0
    rise: Tensor  # mean of each piece less x
    mass: Tensor  # of the piece that holds x; 0 where none does
    log_share: Tensor  # log of the share of this piece's mass that lies above x
    offset: Tensor  # mean of that part less x


def _locate(x: Tensor, knots: Tensor, masses: Tensor, form: PiecewiseForm) -> _Place:
    ends = form.pad(knots, -_FAR, _FAR)
    with torch.no_grad():
        is_above = torch.gt(ends[:-1], x, out=torch.empty_like(ends[:-1]))
        own = (len(masses) - 1 - is_above.sum(dim=0)).long().unsqueeze(0)
    start, outside, normal = x, None, None
    if not (form.open_low and form.open_high):
        outside = (own < 0).squeeze(0) | (x >= ends[-1])
        own = own.clamp(min=0)
        start = torch.where(outside, ends.detach().gather(0, own).squeeze(0), x)
    if any(form.uniform):
        normal = form.is_normal(ends).expand_as(masses)
        normal = torch.cat([normal, normal.gather(0, own)])
    return _Place(ends, start, own, normal, is_above, outside)


def _parts(x: Tensor, masses: Tensor, place: _Place, log_mass: Tensor, offset: Tensor) -> _Parts:
    mass = masses.gather(0, place.own).squeeze(0)
    log_share = log_mass[-1] - log_mass[:-1].gather(0, place.own).squeeze(0)
    if place.outside is not None:
        mass = mass.masked_fill(place.outside, 0.0)
        log_share = log_share.masked_fill(place.outside, 2 * LOG_ZERO)
    rise = place.ends[:-1] - x + offset[:-1]
    return _Parts(masses * place.is_above, rise, mass, log_share, offset[-1])


def normal_pieces_above(
    x: Tensor, knots: Tensor, form: PiecewiseForm
) -> tuple[Tensor, Tensor, Tensor]:
    """What of each piece lies above ``x``, all pieces taken for normal ones, without a graph.

    Args:
        x: ``n`` numbers, float64.
        knots: ``num_finite_knots x n``.
        form: Form of the distribution.

    Returns:
        Three tensors ``num_pieces x n``: the logarithm of the natural mass; that of the share of it
        above ``x``, `LOG_ZERO` or less where there is none; and the mean of that share less ``x``.
    """
    all_normal = replace(form, uniform=(False,) * form.num_pieces)
    place = _locate(x, knots, knots.new_empty(form.num_pieces, 0), all_normal)
    log_mass, offset, *_ = _normal_moments(place.ends, place.start, place.own)
    own_share = log_mass[-1:] - log_mass.gather(0, place.own)
    if place.outside is not None:
        own_share = own_share.masked_fill(place.outside, 2 * LOG_ZERO)
    is_above = place.is_above > 0.0
    log_share = torch.zeros_like(log_mass[:-1]).masked_fill_(~is_above, 2 * LOG_ZERO)
    rise = (place.ends[:-1] - x + offset[:-1]).masked_fill_(~is_above, 0.0)
    # Where x lies below all pieces, that named its own is above it like the others.
    below = is_above.gather(0, place.own)
    own_rise = torch.where(below, rise.gather(0, place.own), offset[-1:])
    log_share.scatter_(0, place.own, own_share.masked_fill(below, 0.0))
    return log_mass[:-1], log_share, rise.scatter_(0, place.own, own_rise)


def _log_integrals(parts: _Parts) -> Tensor:
    """Both logarithms, ``2 x n``, without a graph."""
    above = torch.stack([parts.above * parts.rise, parts.above]).sum(dim=1).log_()
    log_own = parts.log_share + parts.mass.log()
    own = torch.stack([log_own + parts.offset.log(), log_own])
    # Where nothing lies above x, both are minus infinity.
    return torch.logaddexp(above, own).clamp_(min=LOG_ZERO)


def _integrals(
    x: Tensor, knots: Tensor, masses: Tensor, form: PiecewiseForm
) -> tuple[Tensor, Tensor]:
    """`ObservationIntegrals` with an ordinary graph."""
    with torch.enable_grad():
        place = _locate(x, knots, masses, form)
        parts = _parts(x, masses, place, *_Moments.apply(*place.interval))
        log_own = parts.log_share + parts.offset.log()
        excess = _log_total((parts.above * parts.rise).sum(dim=0), parts.mass, log_own)
        return excess, _log_total(parts.above.sum(dim=0), parts.mass, parts.log_share)


def _log_total(above: Tensor, mass: Tensor, log_own: Tensor) -> Tensor:
    """``log(above + mass exp(log_own))``, without underflow of the last exponential.

    Unlike ``logaddexp`` it has derivatives where one of the terms is 0.
    """
    with torch.no_grad():
        log_above = above.clamp(min=TINY).log_()
        log_scale = torch.maximum(log_own, log_above.masked_fill_(above == 0.0, LOG_ZERO))
    unit = (-log_scale).clamp_(max=-LEAST).exp_()
    total = above * unit + mass * (log_own - log_scale).clamp(min=LEAST).exp()
    empty = total <= 0.0
    return (total.clamp(min=TINY).log() + log_scale).masked_fill(empty, LOG_ZERO)


class _Moments(Function):
    """Logarithm of the natural mass of intervals, and their means less their lower ends.

    The natural mass of a normal piece is that under the normal distribution, that of a uniform one
    its width. The intervals are the pieces, and what lies above ``x`` of the piece ``own``. With
    ``f`` the density of a piece of its own and ``o`` the offset, ``d o / d low = f(low) o - 1`` and
    ``d o / d high = f(high) (high - low - o)``; the logarithm of the mass has the derivatives
    ``-f(low)`` and ``f(high)``.

    Args:
        ends: All knots, ``(num_pieces + 1) x n``, far ones for the infinite.
        x: ``n`` numbers.
        own: ``1 x n`` indices of the pieces that hold ``x``.
        normal: 1 for normal and 0 for uniform intervals, ``(num_pieces + 1) x n``; None if all
            are normal.

    Returns:
        Two tensors ``(num_pieces + 1) x n``; the last row is that of ``x``.
    """

    @staticmethod
    def forward(
        ctx: Any, ends: Tensor, x: Tensor, own: Tensor, normal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        log_mass, offset, at_low, at_high = _moments(ends, x, own, normal)
        ctx.save_for_backward(ends, x, own, normal, log_mass, offset, at_low, at_high)
        return log_mass, offset

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ends, x, own, normal, log_mass, offset, at_low, at_high = ctx.saved_tensors
        by_mass, by_offset = grads
        low, high = _intervals(ends, x, own)
        if torch.is_grad_enabled():  # then the densities need a graph
            shapes = (log_phi(low), log_phi(high))
            shapes = shapes if normal is None else tuple(s * normal for s in shapes)
            at_low, at_high = ((shape - log_mass).exp() for shape in shapes)
        by_low = at_low * (by_offset * offset - by_mass) - by_offset
        by_high = at_high * (by_offset * (high - low - offset) + by_mass)
        zero = torch.zeros_like(by_low[:1])
        by_ends = torch.cat([by_low[:-1], zero]) + torch.cat([zero, by_high[:-1]])
        return by_ends.scatter_add(0, own + 1, by_high[-1:]), by_low[-1], None, None


def _moments(
    ends: Tensor, x: Tensor, own: Tensor, normal: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`_Moments`, and the densities at the lower and the upper ends, all without a graph."""
    moments = _normal_moments(ends, x, own)
    if normal is None:
        return moments
    width = _width(*_intervals(ends, x, own))
    density = 1 / width
    flat = (width.log(), 0.5 * width, density, density)
    log_mass, offset, at_low, at_high = (
        torch.lerp(a, b, normal) for a, b in zip(flat, moments, strict=True)
    )
    return log_mass, offset, at_low, at_high


def _intervals(ends: Tensor, x: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of the intervals, each ``(num_pieces + 1) x n``."""
    low = torch.cat([ends[:-1], x.unsqueeze(0)])
    return low, torch.cat([ends[1:], ends.gather(0, own + 1)])


def _width(low: Tensor, high: Tensor) -> Tensor:
    return (high - low).clamp_(min=_THIN)


def _normal_moments(ends: Tensor, x: Tensor, own: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """For normal pieces: log mass, offset, and densities at the lower and the upper ends.

    The mass is that of `log_normal_interval`; here it comes from the Mills ratios that the offset
    needs as well, at a fraction of the cost of two ``log_ndtr``, and narrow pieces keep their
    digits.

    Each interval is turned such that its end ``a`` nearer to zero is the lower one. Masses are
    in units of the normal density at ``a``, or of ``exp(LEAST)`` where ``a < 0`` is so far out
    that nothing of the normal distribution lies beyond it.
    """
    low, high = _intervals(ends, x, own)
    width, total = _width(low, high), low + high
    right = less(-total, 0.0)
    a = torch.lerp(-high, low, right)
    across = less(a, 0.0)
    # The logarithm of the density falls by this from a to b: (b^2 - a^2) / 2.
    fall = total.abs_().mul_(0.5).mul_(width)
    at_b = fall.clamp(max=-LEAST).neg_().exp_()
    log_unit = (a * a).mul_(0.5)
    near = log_unit.clamp(max=-LEAST)
    log_unit.lerp_(near, across)

    tails = _turned_tails(ends, x, own, right)
    mass, offset = _wide_moments(a, width, tails, at_b, near.exp_(), across)
    near_mass, near_offset = _narrow_moments(width, fall)
    narrow = less(fall.add_(width), _NARROW)
    mass.lerp_(near_mass, narrow)
    offset.lerp_(near_offset, narrow)

    at_a, at_b = mass.reciprocal(), at_b.div_(mass)
    log_mass = mass.log_().sub_(log_unit).sub_(_LOG_SQRT_2PI)
    # In an interval that was turned the offset is from the other end.
    offset = torch.lerp(width.sub_(offset), offset, right)
    return log_mass, offset, torch.lerp(at_b, at_a, right), torch.lerp(at_a, at_b, right)


def _turned_tails(ends: Tensor, x: Tensor, own: Tensor, right: Tensor) -> tuple[Tensor, Tensor]:
    """Tail mass and excess over density at ``|a|`` and ``|b|``, ``2 x (num_pieces + 1) x n``."""
    distance = torch.cat([ends, x.unsqueeze(0)]).abs_()
    table = first_tails(distance)
    last = len(ends)
    at_own = table[:, :last].gather(1, (own + 1).expand(2, 1, -1))
    low = torch.cat([table[:, : last - 1], table[:, last:]], dim=1)
    high = torch.cat([table[:, 1:last], at_own], dim=1)
    return torch.lerp(high, low, right), torch.lerp(low, high, right)


def _wide_moments(
    a: Tensor,
    width: Tensor,
    tails: tuple[Tensor, Tensor],
    at_b: Tensor,
    inverse: Tensor,
    across: Tensor,
) -> tuple[Tensor, Tensor]:
    """Mass, and offset of the mean from ``a``, by differences of tails.

    With ``N`` and ``h`` the normal mass and excess beyond a number, the mass is
    ``N(a) - N(b)`` and the offset ``(h(a) - h(b) - (b - a) N(b)) / mass``; for ``a < 0``,
    ``N(a) = 1 - N(-a)`` and ``h(a) = -a + h(-a)``.
    """
    (mass, excess), (mills_b, ramp_b) = tails
    mass = mass.lerp_((inverse * _SQRT_2PI).sub_(mass), across)
    mass.addcmul_(at_b, mills_b, value=-1)
    excess.addcmul_(a.clamp_(max=0.0), inverse, value=-_SQRT_2PI)
    excess.addcmul_(at_b, ramp_b.addcmul_(width, mills_b), value=-1)
    return mass, excess.div_(mass)


def _narrow_moments(width: Tensor, fall: Tensor) -> tuple[Tensor, Tensor]:
    """The same for a narrow interval, by a series about its middle ``m``.

    With ``v`` half the width and ``y = m v`` half the fall, the density over that at ``m`` is
    ``sum_n He_n(m) (-t)^n / n!`` at ``m + t``: its mean is ``1 + (y^2 - v^2)/6 + ...`` and that
    of ``t`` times it ``-v y (1/3 + (y^2 - 3 v^2)/30 + ...)``.
    """
    v, y = (0.5 * width).clamp_(max=_NARROW), (0.5 * fall).clamp_(max=_NARROW)
    vv, yy = v * v, y * y
    rise = torch.sub(0.5 * vv, y).exp_().mul_(width)  # the density at m over that at a
    mass = rise.addcmul_(rise, yy - vv, value=1 / 6)
    y.mul_(yy.add_(vv, alpha=2.0).mul_(-1 / 45).add_(1 / 3))
    return mass, v.addcmul_(v, y, value=-1)
