r"""Improvement under a piecewise distribution smoothed by Gaussian noise, with its derivatives.

Let ``z`` be distributed by pieces and ``eps`` standard normal. Wanted are the excess
``E = E(z + r eps - x)+``, the survival function ``S = P(z + r eps > x)`` and the density ``p`` of
``z + r eps`` at ``x``, each the mean over the pieces. Where tails of a normal distribution lie
beyond all other pieces, there are these ways:

* normal pieces are differences of the tails beyond their knots, on the side away from zero
  (`bivariate_tails`), and of the whole normal distribution;
* uniform pieces are integrated by Gauss and Legendre's rule on either side of ``x``;
* a single uniform piece around zero between normal tails of equal weight, as conformal calibration
  states it, needs no such tails: together they are what the whole normal distribution has beyond
  the piece, which the same rule integrates;
* if that piece has the mass that the normal distribution has there, a stretched form, one smooth
  integral tells it from the whole normal distribution (`_beside_normal`).

Other distributions are integrated piece by piece (`_piece_integrals`).

Derivatives: ``dE/dx = -S``, ``dS/dx = -p``, by the heat equation ``dE/dr = r p`` and
``dS/dr = -r p'``. A knot that moves by ``dk`` adds ``f(k) dk`` of the density ``f`` of the piece
below at ``k`` and, since its mass stays the same, thins the rest of it. They need no graph; where
they are to be differentiated again, they come from that of `_piece_integrals`.

Everything is on a scale of its own per number, so that
logarithms of numbers like ``exp(-700)`` keep their digits, and in units of the scale of the normal
pieces. Tensors have the pieces, or the finite knots, in their first dimension.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from botorch.utils.probability.utils import log_ndtr, log_phi, ndtr
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from botorch_calib.distributions._bivariate_tails import bivariate_tails, off_zero
from botorch_calib.distributions._normal_functions import (
    LEAST,
    LOG_ZERO,
    TINY,
    first_tails,
    graded_rule,
    less,
    log_h,
    log_normal_interval,
    unit_legendre,
)
from botorch_calib.distributions._normal_pieces import NormalShares
from botorch_calib.distributions._piece_integrals import (
    log_integrals_by_pieces,
    piece_logs,
)
from botorch_calib.distributions.form import PiecewiseForm

_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_ORDER = 20  # of the rule on either side of x
_NODES = 32  # of the rule on what the noise reaches
_CUT = 72.0  # where the rule ends: the integrand has fallen by exp(-36)
EXCESS, SURVIVAL = 0, 1


def log_excess(
    x: Tensor,
    r: Tensor | None,
    knots: Tensor,
    masses: Tensor,
    form: PiecewiseForm,
    parts: Parts | None = None,
) -> Tensor:
    """``log E(z + r eps - x)+``, differentiable to any order; at least `LOG_ZERO`.

    Args:
        x: ``n`` thresholds, float64.
        r: ``n`` positive ratios of the noise to the scale of the normal pieces; None for no noise.
        knots: ``num_finite_knots x n``, or ``x 1`` where they are common.
        masses: ``num_pieces x n``, or ``x 1``; may hold zeros.
        form: Form of the distribution, which is not a single normal piece without bounds.
        parts: `parts_of` the distribution, if known.
    """
    return _log_integral(x, r, knots, masses, form, parts, EXCESS)


def log_survival(
    x: Tensor,
    r: Tensor | None,
    knots: Tensor,
    masses: Tensor,
    form: PiecewiseForm,
    parts: Parts | None = None,
) -> Tensor:
    """``log P(z + r eps > x)``; as `log_excess`."""
    return _log_integral(x, r, knots, masses, form, parts, SURVIVAL)


def log_densities(x: Tensor, r: Tensor, knots: Tensor, form: PiecewiseForm) -> Tensor:
    """Logarithm of the density of ``z + r eps`` at ``x`` of each piece, ``num_pieces x n``.

    The density is that of all of ``z + r eps`` at ``x`` times the mass of the piece in what ``z``
    is, given this; that of a normal piece is a difference of normal probabilities again.
    """
    t = (knots - x) / r
    ends, normal = form.pad(knots, -math.inf, math.inf), form.is_normal(x) > 0
    norm = (1 + r.square()).sqrt()
    # Given z + r eps = x, a normal piece's z is N(x / norm^2, (r / norm)^2).
    inner = form.pad((t + r * knots) / norm, -math.inf, math.inf)
    density = log_normal_interval(inner[:-1], inner[1:]) + (log_phi(x / norm) - norm.log())
    density = density - log_normal_interval(ends[:-1], ends[1:])
    if not any(form.uniform):
        return density
    inner, width = form.pad(t, -math.inf, math.inf), ends.diff(dim=0)
    flat = log_normal_interval(inner[:-1], inner[1:]) - width.masked_fill(normal, 1.0).log()
    return torch.where(normal, density, flat)


class Parts(NamedTuple):
    """What is known of the pieces whatever ``x``; each row has ``n`` columns or one."""

    jumps: Tensor  # of the normal part of the density, at each finite knot
    steps: Tensor | None  # of the uniform part
    at_low: Tensor  # density of each piece, taken as a distribution, at its lower end
    at_high: Tensor  # the same at its upper end
    normal: NormalShares | None  # None if form.compact


@torch.no_grad()
def parts_of(knots: Tensor, masses: Tensor, form: PiecewiseForm) -> Parts:
    """Those of the distribution with these finite knots and masses, without a graph."""
    if form.compact:
        flat, edge = 1.0 / (knots[1:] - knots[:1]), log_phi(knots[:1]).exp() / ndtr(knots[:1])
        height, jump, zero = masses[1:2] * flat, masses[:1] * edge, torch.zeros_like(flat)
        jumps, steps = torch.cat([-jump, jump]), torch.cat([height, -height])
        return Parts(
            jumps, steps, torch.cat([zero, flat, edge]), torch.cat([edge, flat, zero]), None
        )
    ends = form.pad(knots, -math.inf, math.inf)
    shares = NormalShares(ends)
    at_low, at_high = shares.at_low, shares.at_high
    if not any(form.uniform):
        jumps = _jumps(masses * at_low, masses * at_high, form)
        return Parts(jumps, None, at_low, at_high, shares)
    normal = form.is_normal(knots)
    flat = (1.0 - normal) / (ends[1:] - ends[:-1]).masked_fill(normal > 0, 1.0)
    at_low, at_high, heights = at_low * normal, at_high * normal, masses * flat
    jumps = _jumps(masses * at_low, masses * at_high, form)
    steps = _jumps(heights, heights, form)
    return Parts(jumps, steps, at_low + flat, at_high + flat, shares)


def _jumps(above: Tensor, below: Tensor, form: PiecewiseForm) -> Tensor:
    """By how much a density jumps at each finite knot, given that at both ends of each piece."""
    jumps = pad(above, (0, 0, 0, 1)) - pad(below, (0, 0, 1, 0))
    return jumps[int(form.open_low) : len(jumps) - int(form.open_high)]


def _log_integral(
    x: Tensor,
    r: Tensor | None,
    knots: Tensor,
    masses: Tensor,
    form: PiecewiseForm,
    parts: Parts | None,
    which: int,
) -> Tensor:
    if r is not None and not form.covered:
        return log_integrals_by_pieces(x, r, knots, masses, form)[which]
    if not form.around_zero:
        knots = off_zero(knots)
    if parts is None:
        parts = parts_of(knots, masses, form)
    out: Tensor = _Integral.apply(x, r, knots, masses, parts, form, which)
    return out


class Values:
    """``E``, ``S`` and ``p`` at ``x`` over ``exp(log_scale)``, without a graph.

    Attributes:
        pieces: All three of each piece, taken as a distribution, ``3 x num_pieces x n``. A
            stretched form has them only ``with_pieces``.
        totals: ``E`` and ``S``, ``2 x n``.
        density: ``p``, and ``normal_density`` what the normal pieces add to it.
    """

    norm: Tensor
    log_scale: Tensor
    pieces: Tensor

    def __init__(
        self,
        x: Tensor,
        r: Tensor | None,
        knots: Tensor,
        masses: Tensor,
        parts: Parts,
        form: PiecewiseForm,
        like: Values | None = None,
        with_pieces: bool = False,
    ) -> None:
        if r is None:
            self._set_totals(self._without_noise(x, knots, masses, form), x, masses, form)
            return
        self.norm = (r * r).add_(1.0).sqrt_() if like is None else like.norm
        c = x / self.norm
        peak = c.clamp(min=0.0).square_().mul_(-0.5)
        if form.stretched and not with_pieces:
            self.log_scale = peak
            whole = _whole_line(c, self.norm, torch.zeros_like(c), first_tails(c.abs()))
            change, within = _beside_normal(x, r, knots, masses, peak)
            self.totals, self.density = (
                (whole[:2] + change[:2]).clamp_(min=0.0),
                whole[2] + change[2],
            )
            self.normal_density = self.density - within
            return
        if parts.normal is None:
            self.log_scale = peak
            flats, ratios = _flats(x, r, knots[:1], knots[1:], peak, c, True)
            flat, within = flats.unbind(1)
            whole = _whole_line(c, self.norm, torch.zeros_like(c), ratios).unsqueeze(1)
            tail = (whole - within).mul_(0.5 / ndtr(knots[:1]))
            pieces = torch.cat([tail, flat * parts.at_low[1:2], tail], dim=1)
        else:
            pieces = self._by_tails(x, r, knots, c, peak, parts.normal, form)
            if any(form.uniform):
                rows = [i for i, is_flat in enumerate(form.uniform) if is_flat]
                low, high = _rows(knots, [i - 1 for i in rows]), _rows(knots, rows)
                flat, _ = _flats(x, r, low, high, self.log_scale, c, False)
                flat = flat * _rows(parts.at_low, rows)
                found = dict(zip(rows, flat.unbind(1), strict=True))
                others = pieces.unbind(1)
                pieces = torch.stack([found.get(i, v) for i, v in enumerate(others)], dim=1)
        self._set_totals(pieces, x, masses, form)

    def _set_totals(self, pieces: Tensor, x: Tensor, masses: Tensor, form: PiecewiseForm) -> None:
        self.pieces = pieces
        shares = self.pieces * masses
        total = shares.sum(dim=1)
        self.totals, self.density = total[:2].clamp_(min=0.0), total[2]
        self.normal_density = self.density
        if any(form.uniform):
            self.normal_density = (shares[2] * form.is_normal(x)).sum(dim=0)

    def _without_noise(
        self, x: Tensor, knots: Tensor, masses: Tensor, form: PiecewiseForm
    ) -> Tensor:
        """All pieces in closed form; also those of a bounded distribution."""
        (log_e, log_s), natural = piece_logs(x, None, knots, form)
        ends = form.pad(knots, -math.inf, math.inf)
        log_p = torch.where(form.is_normal(x) > 0, log_phi(x), 0.0).expand_as(log_e)
        log_p = log_p.masked_fill((x < ends[:-1]) | (x >= ends[1:]), 2 * LOG_ZERO)
        log_s = log_s.sub_(natural).masked_fill_(x <= ends[:-1], 0.0)
        logs = torch.stack([log_e.sub_(natural), log_s, log_p - natural])
        levels = logs[:2].amax(dim=0).masked_fill(masses == 0.0, LOG_ZERO)
        self.log_scale = levels.amax(dim=0).clamp_(min=LOG_ZERO)
        units = (logs - self.log_scale).clamp_(LEAST, -LEAST).exp_()
        return units.masked_fill_(logs <= LOG_ZERO, 0.0)

    def _by_tails(
        self,
        x: Tensor,
        r: Tensor,
        knots: Tensor,
        c: Tensor,
        peak: Tensor,
        normal: NormalShares,
        form: PiecewiseForm,
    ) -> Tensor:
        """All pieces as if they were normal ones, by differences of tails."""
        ratios, mills = first_tails(c.abs()), normal.mills[1:-1]
        t = (knots - x) / r
        tails, nearest = bivariate_tails(c, knots, t, r, self.norm, ratios, mills)
        offset = (knots * knots).mul_(0.5) - nearest  # exactly 0 where all of a tail counts
        tails[0].mul_(self.norm)
        tails[2].div_(self.norm)
        self.log_scale = offset.amax(dim=0)
        if not form.only_tails:
            self.log_scale = torch.maximum(self.log_scale, peak)
        tails.mul_((offset - self.log_scale).clamp_(LEAST, -LEAST).exp_().div_(mills))
        lower, upper = normal.low[1:] * tails, normal.high[:-1] * tails
        pieces = pad(lower, (0, 0, 1, 0)) - pad(upper, (0, 0, 0, 1))
        if form.only_tails:
            return pieces
        whole = _whole_line(c, self.norm, peak - self.log_scale, ratios)
        return torch.addcmul(pieces, normal.around, whole.unsqueeze(1))


def density_slopes(
    x: Tensor, r: Tensor, knots: Tensor, parts: Parts, normal_density: Tensor, log_scale: Tensor
) -> tuple[Tensor, Tensor]:
    """``p'`` and ``p''`` over ``exp(log_scale)``, given ``p`` of the normal part on that scale.

    With ``phi_r`` the density of the noise, ``p' = int f'(z) phi_r(x - z) dz`` and what the jumps
    of ``f`` add, ``sum_k j_k phi_r(x - k)``. A uniform piece has ``f' = 0``. A normal one has
    ``f' = -z f``, and given ``z + r eps = x`` the mean of ``z`` is ``x / norm^2`` plus such a sum
    again: ``p' = (sum_k j_k phi_r(x - k) - x p) / norm^2``. Nothing here has a graph.
    """
    t, shrink = (knots - x) / r, (r * r).add_(1.0).reciprocal_()
    noise = log_phi(t).sub_(r.log() + log_scale).clamp_(LEAST, -LEAST).exp_()
    edge = parts.jumps * noise
    slope = torch.addcmul(edge.sum(dim=0), x, normal_density, value=-1).mul_(shrink)
    curve = torch.addcmul((edge * t).sum(dim=0).div_(r).sub_(normal_density), x, slope, value=-1)
    curve.mul_(shrink)
    if parts.steps is not None:
        edge = parts.steps * noise
        slope, curve = slope + edge.sum(dim=0), curve + (edge * t).sum(dim=0).div_(r)
    return slope, curve


def _rows(values: Tensor, rows: list[int]) -> Tensor:
    """Some rows of a tensor, without a copy if they are neighbours."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return values.narrow(0, rows[0], len(rows))
    return torch.stack([values[i] for i in rows])


def _whole_line(c: Tensor, norm: Tensor, log_unit: Tensor, ratios: Tensor) -> Tensor:
    """``norm h(-c)``, ``Phi(-c)`` and ``phi(c) / norm``.

    They are in units of the density at ``max(c, 0)`` over that at 0, and multiplied with
    ``exp(log_unit)``; ``ratios`` are `first_tails` of ``|c|``.
    """
    up, unit = (-c).clamp_(min=0.0), log_unit.clamp(min=LEAST).exp_()
    phi = (up * up).mul_(-0.5).clamp_(min=LEAST).exp_().mul_(unit).mul_(_INV_SQRT_2PI)
    tail, h = ratios * phi
    h.addcmul_(up, unit)
    tail.lerp_(unit - tail, less(c, 0.0))
    return torch.stack([h.mul_(norm), tail, phi.div_(norm)])


def _beside_normal(
    x: Tensor, r: Tensor, knots: Tensor, masses: Tensor, log_scale: Tensor
) -> tuple[Tensor, Tensor]:
    r"""``E``, ``S`` and ``p`` of a stretched form less those of the normal distribution.

    Both agree beyond ``-c`` and ``c``. Between, their densities differ by ``D = u - phi``, which
    has neither mass nor mean: its antiderivative ``D_1`` and that of it, ``D_2``, vanish at both
    ends.
    Integrated by parts, the differences are convolutions of ``D_2``, ``-D_1`` and ``D`` with the
    density of the noise, of which the first has the second and third as derivatives:

        ``int D(z) r h((z - x) / r) dz = int D_2(z) phi((z - x) / r) / r dz``.

    There is no kink at ``x`` however small the noise: one Gauss-Legendre rule on what the noise
    reaches of the interval is exact to about 1e-11 of the total.

    Returns:
        ``3 x n``, and what the uniform piece adds to ``p``, ``n``; over ``exp(log_scale)``.
    """
    low, high = knots[:1], knots[1:]
    tail, flat = masses[:1], masses[1:2] / (high - low)
    at = torch.minimum(torch.maximum(x, low), high)
    start = (at - x).abs_().div_(r)
    reach = (start * start).add_(_CUT).sqrt_().add_(start).reciprocal_().mul_(r).mul_(_CUT)
    first, last = torch.maximum(at - reach, low), torch.minimum(at + reach, high)
    nodes, weights = (v.unsqueeze(-1) for v in unit_legendre(_NODES, x.dtype, x.device))
    length = last.sub_(first)
    z = torch.addcmul(first, nodes, length)
    t = (z - x).div_(r)
    mass = (t * t).mul_(-0.5).sub_(log_scale).clamp_(LEAST, -LEAST).exp_()
    mass.mul_(weights).mul_(length.div_(r).mul_(_INV_SQRT_2PI))
    density, below = (z * z).mul_(-0.5).exp_().mul_(_INV_SQRT_2PI), ndtr(z)
    v, edge = z - low, torch.addcmul(log_phi(low).exp(), low, tail)
    rise = torch.addcmul(density, z, below).sub_(edge)
    once = torch.addcmul(below - tail, v, flat, value=-1)  # -D_1
    twice = torch.addcmul(v * tail, v * v, flat, value=0.5).sub_(rise)
    change = (torch.stack([twice, once, flat - density]).mul_(mass)).sum(dim=1)
    return change, mass.sum(dim=0).mul_(flat.squeeze(0))


def _flats(
    x: Tensor,
    r: Tensor,
    low: Tensor,
    high: Tensor,
    log_scale: Tensor,
    c: Tensor,
    with_normal: bool,
) -> tuple[Tensor, Tensor]:
    """``int r h(t) dz``, ``int Phi(t) dz`` and ``int phi(t) / r dz``, ``t = (z - x) / r``.

    What is above ``x`` without noise is known; what the noise adds falls off to both sides from
    ``x``, or from the end next to it.

    Returns:
        ``3 x K x n``, over ``exp(log_scale)``; if ``with_normal``, ``3 x 2 x K x n``, the second
        with ``phi(z)`` under the integrals. Then `first_tails` of ``|c|``, found in passing.
    """
    at = torch.minimum(torch.maximum(x, low), high)
    start = (at - x).abs_().div_(r)
    square = start * start
    reach = (square + _CUT).sqrt_().add_(start).reciprocal_().mul_(_CUT)
    length = torch.minimum(torch.stack([at - low, high - at]).div_(r), reach)
    nodes, weights, side = _rule(x.dtype, x.device)
    y = nodes * length
    unit = square.mul_(-0.5).sub_(log_scale).clamp_(LEAST, -LEAST).exp_()
    unit = length.mul_(unit).mul_(r * _INV_SQRT_2PI)
    mass = torch.addcmul(y * start, y, y, value=0.5).neg_().exp_().mul_(unit).mul_(weights)
    t = y + start
    ratios = first_tails(torch.cat([t.view(-1), c.abs()]))
    mills, ramp = ratios[:, : t.numel()].view(2, *t.shape)
    terms = torch.stack([mass * ramp, mass * mills.mul_(side), mass])
    above, root = high - at, (-log_scale).clamp_(max=-LEAST).exp_()
    sure = torch.stack([above * (at + high).mul_(0.5).sub_(x), above])
    if with_normal:
        z = torch.addcmul(at, y, r * side, value=-1)
        density = (z * z).mul_(-0.5).exp_().mul_(_INV_SQRT_2PI)
        terms = torch.stack([terms, terms * density], dim=1)
        ends = torch.stack([at, high.expand_as(at)])
        phi, below = (ends * ends).mul_(-0.5).exp_().mul_(_INV_SQRT_2PI), ndtr(ends)
        rest = below[1] - below[0]
        rise = torch.addcmul(phi[0] - phi[1], x, rest, value=-1)
        sure = torch.stack([sure, torch.stack([rise, rest])], dim=1)
    values = terms.sum(dim=(-4, -3))
    values[0].mul_(r)
    values[2].div_(r)
    values[:2].addcmul_(sure, root)
    return values, ratios[:, t.numel() :]


@lru_cache(maxsize=32)
def _rule(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Nodes and weights along the first of four dimensions; 1 below ``x`` and -1 above."""
    nodes, weights = graded_rule(_ORDER, dtype, device)
    with torch.inference_mode(False):  # else no graph could use what the cache holds
        side = torch.tensor([1.0, -1.0], dtype=dtype, device=device).view(2, 1, 1)
        return nodes[:, 0].clone().view(-1, 1, 1, 1), weights.view(-1, 1, 1, 1), side


class _Integral(Function):
    """`log_excess` or `log_survival` of a distribution whose form is covered."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        r: Tensor | None,
        knots: Tensor,
        masses: Tensor,
        parts: Parts,
        form: PiecewiseForm,
        which: int,
    ) -> Tensor:
        with_pieces = any(ctx.needs_input_grad[2:4])
        values = Values(x, r, knots.contiguous(), masses, parts, form, with_pieces=with_pieces)
        total = values.totals[which]
        log_total = total.clamp(min=TINY).log_().add_(values.log_scale)
        # Where nothing is above x, no derivative is either.
        nothing = total <= 0.0
        total = total.masked_fill(nothing, math.inf)
        by_x, by_r = (values.totals[1] if which == EXCESS else values.density) / total, None
        if r is not None and which == EXCESS:
            by_r = r * values.density / total
        elif r is not None:
            slope, _ = density_slopes(x, r, knots, parts, values.normal_density, values.log_scale)
            by_r = -r * slope / total
        means = None
        if with_pieces:
            means = values.pieces[which] / total
        ctx.save_for_backward(
            x, r, knots, masses, log_total.masked_fill(nothing, math.inf), by_x, by_r, means
        )
        ctx.parts, ctx.form, ctx.which = parts, form, which
        return log_total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, r, knots, masses, log_total, by_x, by_r, means = ctx.saved_tensors
        inputs, needed = (x, r, knots, masses), ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():
            wanted = [v for v, need in zip(inputs, needed, strict=True) if need]
            # Second derivatives by `x` and `r` err by 1e-15 / r, as terms of size 1 / r cancel.
            value = log_integrals_by_pieces(*inputs, ctx.form)[ctx.which]
            found = iter(
                torch.autograd.grad(value, wanted, grad, create_graph=True, allow_unused=True)
            )
            return (*(next(found) if need else None for need in needed), None, None, None)
        slopes = [-grad * by_x, None if by_r is None else grad * by_r, None, None]
        if means is not None:
            # A knot that moves adds its density to the piece below, and since the mass stays the
            # same, thins the rest.
            parts, with_mean = ctx.parts, masses * means
            jumps = parts.jumps if parts.steps is None else parts.jumps + parts.steps
            by_mean = _jumps(with_mean * parts.at_low, with_mean * parts.at_high, ctx.form)
            by_knots = by_mean - jumps * _at_knots(x, r, knots, log_total, ctx.which)
            slopes[2] = (grad * by_knots).sum_to_size(knots.shape) if needed[2] else None
            slopes[3] = (grad * means).sum_to_size(masses.shape) if needed[3] else None
        return (*slopes, None, None, None)


def _at_knots(x: Tensor, r: Tensor | None, knots: Tensor, log_total: Tensor, which: int) -> Tensor:
    """What a unit of mass at each knot has for ``E`` or ``S``, over that of all."""
    if r is not None:
        t = (knots - x) / r
        log_value = log_h(t) + r.log() if which == EXCESS else log_ndtr(t)
        return (log_value - log_total).clamp_(LEAST, -LEAST).exp_()
    value = (knots - x).clamp(min=0.0) if which == EXCESS else (x < knots).to(x.dtype)
    return value * (-log_total).clamp(max=-LEAST).exp_()
