r"""Integrals of a piecewise law smoothed by Gaussian noise, with closed-form derivatives.

Let ``z`` be distributed by pieces and ``eps`` standard normal. Of each piece ``j``, taken as
a law of its own, this module computes the logarithms of

* the excess ``e = E(z + r eps - x)+``,
* the survival function ``s = P(z + r eps > x)``,
* the density ``p`` of ``z + r eps`` at ``x``,

and mixes them by the masses: ``E = sum_j m_j e_j``, ``P = sum_j m_j s_j``. Derivatives need
no graph of all this: ``de/dx = -s``, ``ds/dx = -p``, by the heat equation ``de/dr = r p`` and
``ds/dr = -r p'``, and with ``f`` the density of ``z`` in the piece, at its upper and lower knot
``k`` respectively ``de/dk = +-f(k) (r h((k - x)/r) - e)``, ``ds/dk = +-f(k) (Phi((k - x)/r) - s)``.

Tensors here have the pieces, or the finite knots, in their first dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor
from torch.autograd import Function

from botorch_calib.denoising import bivariate_tails, interval_means, off_zero
from botorch_calib.numerics import LEAST, less, log_h, log_normal_interval

_SQRT_2PI = math.sqrt(2 * math.pi)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_TINY = 1e-280
_FAR = 1e30  # stands for an infinite square, without its overflow


class Layout(NamedTuple):
    """What is known of a law without looking at its numbers."""

    uniform: tuple[bool, ...]  # of each piece: constant density, or normal?
    open_low: bool  # whether the first knot is -inf, and left out
    open_high: bool  # whether the last knot is inf, and left out
    around_zero: bool  # whether zero is known to lie between the finite knots

    @property
    def only_tails(self) -> bool:
        """Whether every normal piece is the tail beyond a finite knot, away from zero."""
        first, *inner, last = self.uniform
        ends = (first or self.open_low) and (last or self.open_high)
        return self.around_zero and ends and all(inner)

    @property
    def lows(self) -> tuple[slice, slice]:
        """Pieces with a finite lower knot, and these knots."""
        first, num = int(self.open_low), len(self.uniform)
        return slice(first, num), slice(0, num - first)

    @property
    def highs(self) -> tuple[slice, slice]:
        """Pieces with a finite upper knot, and these knots."""
        first, last = 1 - int(self.open_low), len(self.uniform) - int(self.open_high)
        return slice(0, last), slice(first, None)

    def pad(self, rows: Tensor, low: float, high: float) -> Tensor:
        """Values at all knots, from those at the finite ones."""
        parts = [rows]
        if self.open_low:
            parts.insert(0, rows.new_full((1, *rows.shape[1:]), low))
        if self.open_high:
            parts.append(rows.new_full((1, *rows.shape[1:]), high))
        return torch.cat(parts) if len(parts) > 1 else rows

    def is_normal(self, ref: Tensor) -> Tensor:
        """1 for the normal and 0 for the uniform pieces, ``num_pieces x 1``."""
        return _is_normal(self.uniform, ref.dtype, ref.device)


@lru_cache(maxsize=128)
def _is_normal(uniform: tuple[bool, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):  # else no graph could use what the cache holds
        return torch.tensor([[not flag] for flag in uniform], dtype=dtype, device=device)


# ---------------------------------------------------------------------- values, without a graph


def _values(x: Tensor, r: Tensor, knots: Tensor, layout: Layout) -> tuple[Tensor, Tensor, Tensor]:
    """``e, s, p`` of all pieces on a scale on which the largest is about 1.

    Returns:
        The values (``3 x num_pieces x n``), the logarithm of the scale (``n``) by which they
        were divided, and that of the natural masses (``num_pieces x n``): the normal mass
        of a normal piece, the width of a uniform one.
    """
    knots = off_zero(knots)
    t = (knots - x) / r
    parts: list[_Tails | _UniformPieces] = []
    if not all(layout.uniform):
        kind = _Tails if layout.only_tails else _NormalPieces
        parts.append(kind(x, r, knots, t, layout))
    if any(layout.uniform):
        parts.append(_UniformPieces(r, knots, t, layout))
    log_scale = torch.cat([part.levels for part in parts]).amax(dim=0)
    values = torch.cat([part.values(log_scale) for part in parts], dim=1)
    natural = torch.cat([part.log_natural for part in parts])
    # Where the rows of each piece are; later parts replace earlier ones.
    rows = {j: i for i, j in enumerate(j for part in parts for j in part.pieces)}
    order = [rows[j] for j in range(len(layout.uniform))]
    return _rows(values, order, 1), log_scale, _rows(natural, order)


class _Tails:
    """Means over the normal tails that lie beyond knots, away from zero."""

    def __init__(self, x: Tensor, r: Tensor, knots: Tensor, t: Tensor, layout: Layout) -> None:
        ends = {0: 0, len(layout.uniform) - 1: len(knots) - 1}
        self.pieces = [j for j in ends if not layout.uniform[j]]
        rows = [ends[j] for j in self.pieces]
        self._set_tails(x, r, _rows(knots, rows), _rows(t, rows))
        self.levels = self.offset
        self.log_natural = self.mills_k.log().sub_(self.half).sub_(_LOG_SQRT_2PI)

    def _set_tails(self, x: Tensor, r: Tensor, knots: Tensor, t: Tensor) -> None:
        self.norm = (r * r).add_(1.0).sqrt_()
        self.c = x / self.norm
        self.tails, nearest, mills = bivariate_tails(self.c, knots, t, r, self.norm)
        self.mills_k, self.mills_c = mills[:-1], mills[-1]
        self.half = (knots * knots).mul_(0.5)
        self.offset = self.half - nearest

    def values(self, log_scale: Tensor) -> Tensor:
        """``e, s, p`` of the tails over ``exp(log_scale)``, ``3 x num_knots x n``."""
        scale = (self.offset - log_scale).clamp_(LEAST, -LEAST).exp_().div_(self.mills_k)
        return self._in_units(self.tails * scale)

    def _in_units(self, values: Tensor) -> Tensor:
        values[0].mul_(self.norm)
        values[2].div_(self.norm)
        return values


class _NormalPieces(_Tails):
    """All pieces as if they were normal ones.

    With ``N`` the normal mass of the tail beyond a knot and ``T`` the mean over that tail, the
    mean over a piece right of zero is ``(N_low T_low - N_high T_high) / (N_low - N_high)``, left of
    zero that with both signs changed; around zero, both tails are taken from the whole line.
    """

    def __init__(self, x: Tensor, r: Tensor, knots: Tensor, t: Tensor, layout: Layout) -> None:
        self.layout, self.pieces = layout, list(range(len(layout.uniform)))
        self._set_tails(x, r, knots, t)
        self.peak = self.c.clamp(min=0.0).square_().mul_(-0.5)
        self.levels = torch.cat([self.offset, self.peak.unsqueeze(0)])
        self._set_weights(knots.sign())

    def _set_weights(self, side: Tensor) -> None:
        """Shares of the two tails and of the whole line in the mass of each piece."""
        ends = self.layout.pad(side, -1.0, 1.0)
        around = (ends[1:] - ends[:-1]).mul_(0.5)
        table = torch.stack([self.half, side * self.mills_k], dim=1)
        half, mass = self.layout.pad(table, _FAR, _FAR).unbind(1)
        # Everything on the scale of the end nearer to zero
        depth = torch.minimum(half[:-1], half[1:]).mul_(1 - around)
        self.low = (depth - half[:-1]).clamp_(min=LEAST).exp_().mul_(mass[:-1])
        self.high = (depth - half[1:]).clamp_(min=LEAST).exp_().mul_(mass[1:])
        natural = torch.add(self.low - self.high, around, alpha=_SQRT_2PI).clamp_(min=_TINY)
        self.low.div_(natural)
        self.high.div_(natural)
        self.whole = around.div_(natural)
        self.log_natural = natural.log_().sub_(depth).sub_(_LOG_SQRT_2PI)

    def values(self, log_scale: Tensor) -> Tensor:
        """``e, s, p`` of the pieces over ``exp(log_scale)``, ``3 x num_pieces x n``."""
        (with_low, low), (with_high, high) = self.layout.lows, self.layout.highs
        scale = (self.offset - log_scale).clamp_(LEAST, -LEAST).exp_().div_(self.mills_k)
        tails = self.tails * scale
        values = self._whole_line(log_scale).unsqueeze(1) * self.whole
        values[:, with_low].addcmul_(tails[:, low], self.low[with_low])
        values[:, with_high].addcmul_(tails[:, high], self.high[with_high], value=-1)
        return self._in_units(values)

    def _whole_line(self, log_scale: Tensor) -> Tensor:
        """``h(-c)``, ``Phi(-c)`` and ``phi(c)``, times ``sqrt(2 pi)``, over the scale."""
        c = self.c
        ramp = (-c).clamp_(min=0.0)
        unit = (self.peak - log_scale).clamp_(LEAST, -LEAST).exp_()
        phi = (ramp * ramp).mul_(-0.5).clamp_(min=LEAST).exp_().mul_(unit)
        tail = phi * self.mills_c
        h = torch.addcmul(phi, tail, c.abs(), value=-1)
        root = unit * _SQRT_2PI
        return torch.stack(
            [h.addcmul_(ramp, root), torch.lerp(tail, root - tail, less(c, 0.0)), phi]
        )


class _UniformPieces:
    """The uniform pieces: means of ``h``, ``Phi`` and ``phi`` over intervals."""

    def __init__(self, r: Tensor, knots: Tensor, t: Tensor, layout: Layout) -> None:
        self.pieces = [j for j, flag in enumerate(layout.uniform) if flag]
        low = [j - int(layout.open_low) for j in self.pieces]
        high = [i + 1 for i in low]
        width = _rows(knots, high) - _rows(knots, low)
        ends = torch.stack([_rows(t, low), _rows(t, high)])
        self.means, offset = interval_means(ends, width / r)
        self.r, self.levels = r, offset.neg_()
        self.log_natural = width.log_()

    def values(self, log_scale: Tensor) -> Tensor:
        """``e, s, p`` of the pieces over ``exp(log_scale)``, ``3 x (number of them) x n``."""
        values = self.means * (self.levels - log_scale).clamp_(LEAST, -LEAST).exp_()
        values[0].mul_(self.r)
        values[2].div_(self.r)
        return values


def _rows(values: Tensor, rows: list[int], dim: int = 0) -> Tensor:
    """Some rows of a tensor, without a copy if they are neighbours in order."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return values.narrow(dim, rows[0], len(rows))
    parts = values.unbind(dim)
    return torch.stack([parts[i] for i in rows], dim)


@torch.no_grad()
def tail_and_density(
    x: Tensor, r: Tensor, knots: Tensor, masses: Tensor, layout: Layout
) -> tuple[Tensor, Tensor]:
    """``log P(z + r eps > x)`` and the log density at ``x``; arguments as `smoothed_integrals`."""
    values, log_scale, _ = _values(x, r, knots.contiguous(), layout)
    totals = (values[1:] * masses).sum(dim=1).clamp_(min=_TINY).log_() + log_scale
    return totals[0], totals[1]


# ---------------------------------------------------------------------- differentiable densities


def log_densities(x: Tensor, r: Tensor, knots: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """``log p`` and the logarithm of the natural mass of each piece, with a graph."""
    t = (knots - x) / r
    ends = layout.pad(knots, -math.inf, math.inf)
    density = mass = None
    if not all(layout.uniform):
        norm = (1 + r.square()).sqrt()
        # Given z + r eps = x, a normal piece's z is N(x / norm^2, (r / norm)^2).
        inner = layout.pad((t + r * knots) / norm, -math.inf, math.inf)
        mass = log_normal_interval(ends[:-1], ends[1:])
        density = log_normal_interval(inner[:-1], inner[1:]) + (log_phi(x / norm) - norm.log())
    if any(layout.uniform):
        inner = layout.pad(t, -math.inf, math.inf)
        width = ends.diff(dim=0).log()
        flat = log_normal_interval(inner[:-1], inner[1:])
        if density is None or mass is None:
            density, mass = flat, width
        else:
            normal = layout.is_normal(width) > 0
            density, mass = torch.where(normal, density, flat), torch.where(normal, mass, width)
    assert density is not None and mass is not None
    return density - mass, mass


# ---------------------------------------------------------------------- the function itself


def _shares(weight: Tensor, logs: Tensor, log_total: Tensor) -> Tensor:
    """``weight * exp(logs - log_total)``, without overflow."""
    return (logs - log_total).clamp(LEAST, -LEAST).exp() * weight


class _Derivatives:
    """Products of weights ``w_j`` with the derivatives of ``e_j / total`` or ``s_j / total``.

    Here ``total`` is a constant: with ``w = m`` and ``total = E`` their sum over the pieces is
    a derivative of ``log E``.
    """

    def __init__(
        self,
        arguments: tuple[Tensor, Tensor, Tensor],
        logs: tuple[Tensor, Tensor, Tensor],
        natural: Tensor,
        layout: Layout,
        need_knots: bool,
    ) -> None:
        self.x, self.r, knots = arguments
        self.logs, self.layout, self.need_knots = torch.stack(logs), layout, need_knots
        self.t = (knots - self.x) / self.r
        # log f at the upper and at the lower knots, with the rows of pieces and knots meant
        log_shape = log_phi(knots)
        self.ends = []
        for pieces, rows in (layout.highs, layout.lows):
            log_f = log_shape[rows]
            if any(layout.uniform):
                log_f = log_f * layout.is_normal(natural)[pieces]
            self.ends.append((pieces, rows, log_f - natural[pieces]))

    def of_excess(self, weight: Tensor, log_total: Tensor) -> list[Tensor | None]:
        """By ``x``, ``r`` and the knots."""
        shares = _shares(weight, self.logs, log_total)
        _, survival, density = shares.sum(dim=1).unbind()
        by_knots = None
        if self.need_knots:
            log_g = log_h(self.t) + self.r.log()
            by_knots = self.by_knots(weight, shares[0], log_g, log_total)
        return [-survival, self.r * density, by_knots]

    def of_survival(self, weight: Tensor, log_total: Tensor) -> list[Tensor | None]:
        """By ``x``, ``r`` and the knots."""
        own, density = _shares(weight, self.logs[1:], log_total).unbind()
        by_ratio = self.survival_by_ratio(weight, density, log_total)
        by_knots = None
        if self.need_knots:
            by_knots = self.by_knots(weight, own, log_ndtr(self.t), log_total)
        return [-density.sum(dim=0), by_ratio, by_knots]

    def by_knots(self, weight: Tensor, own: Tensor, log_g: Tensor, log_total: Tensor) -> Tensor:
        """By the knots, for means of ``g`` over the pieces; ``own`` is ``w_j mean_j / total``."""
        sides = []
        for pieces, rows, log_f in self.ends:
            total = log_total if log_total.dim() == 1 else log_total[pieces]
            at_knot = _shares(weight[pieces], log_g[rows], total)
            sides.append((at_knot - own[pieces]) * log_f.exp())
        up = sides[0] if self.layout.open_low else _with_zero(sides[0], first=True)
        down = sides[1] if self.layout.open_high else _with_zero(sides[1], first=False)
        return up - down

    def survival_by_ratio(self, weight: Tensor, density: Tensor, log_total: Tensor) -> Tensor:
        """Of ``s`` by ``r``: ``-r p'``, by parts; ``density`` holds ``w_j p_j / total``.

        ``p'(x) = int f'(z) phi_r(x - z) dz`` less the boundary term ``f phi_r`` at the knots; it
        is nothing but that for a uniform piece. For a normal one ``f' = -z f``, and given
        ``z + r eps = x`` the mean of ``z`` is ``x / norm^2`` plus such boundary terms.
        """
        norm2 = 1 + self.r * self.r
        is_normal = self.layout.is_normal(weight)
        result = (is_normal * density).sum(dim=0) * (self.r * self.x / norm2)
        weight = weight / torch.where(is_normal > 0, norm2, torch.ones_like(norm2))
        log_density = log_phi(self.t)
        for sign, (pieces, rows, log_f) in zip((1, -1), self.ends, strict=True):
            total = log_total if log_total.dim() == 1 else log_total[pieces]
            edge = _shares(weight[pieces], log_f + log_density[rows], total)
            result = result + sign * edge.sum(dim=0)
        return result


def _with_zero(rows: Tensor, first: bool) -> Tensor:
    zero = torch.zeros_like(rows[:1])
    return torch.cat([zero, rows] if first else [rows, zero])


class _SmoothedIntegrals(Function):
    """See `smoothed_integrals`.

    The pieces' ``log e`` and ``log s`` are outputs too: the backward pass is made of them,
    and can so be differentiated in its turn.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, r: Tensor, knots: Tensor, masses: Tensor, layout: Layout
    ) -> tuple[Tensor, ...]:
        values, log_scale, natural = _values(x, r, knots.contiguous(), layout)
        values.clamp_(min=_TINY)
        totals = (values[:2] * masses).sum(dim=1).clamp_(min=_TINY).log_() + log_scale
        log_e, log_s, log_p = (values.log_() + log_scale).unbind()
        outputs = (*totals.unbind(), log_e, log_s)
        ctx.save_for_backward(x, r, knots, masses, *outputs, log_p, natural)
        ctx.layout = layout
        ctx.set_materialize_grads(False)
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, r, knots, masses, log_excess, log_survival, log_e, log_s, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():  # then densities and natural masses need a graph
            rest = log_densities(x, r, knots, ctx.layout)
        log_p, natural = rest
        need_knots, need_masses = ctx.needs_input_grad[2:4]
        logs = (log_e, log_s, log_p)
        terms = _Derivatives((x, r, knots), logs, natural, ctx.layout, need_knots)
        parts: list[list[Tensor | None]] = []
        for i, (total, piece, derivatives) in enumerate(
            [(log_excess, log_e, terms.of_excess), (log_survival, log_s, terms.of_survival)]
        ):
            grad, grad_pieces = grads[i], grads[i + 2]
            if grad is not None:
                by_masses = _shares(grad, piece, total) if need_masses else None
                parts.append([*derivatives(grad * masses, total), by_masses])
            if grad_pieces is not None:
                parts.append([*derivatives(grad_pieces, piece), None])
        columns = zip(*parts, strict=True) if parts else [()] * 4
        return (*(_sum(column) for column in columns), None)


def _sum(terms: Iterable[Tensor | None]) -> Tensor | None:
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None


def smoothed_integrals(
    x: Tensor, r: Tensor, knots: Tensor, masses: Tensor, layout: Layout
) -> tuple[Tensor, Tensor]:
    """``log E(z + r eps - x)+`` and ``log P(z + r eps > x)``, differentiable to any order.

    Args:
        x: ``n`` thresholds, float64.
        r: ``n`` positive ratios.
        knots: ``num_finite_knots x n``.
        masses: ``num_pieces x n``; may hold zeros.
        layout: The form of the law, which is not a single normal piece without bounds.
    """
    log_excess, log_survival, _, _ = _SmoothedIntegrals.apply(x, r, knots, masses, layout)
    return log_excess, log_survival
