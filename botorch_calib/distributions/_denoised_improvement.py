r"""Improvement under a piecewise distribution smoothed by Gaussian noise, with its derivatives.

Let ``z`` be distributed by pieces and ``eps`` standard normal. Of each piece ``j``, taken as
a distribution of its own, this module computes

* the excess ``e = E(z + r eps - x)+``,
* the survival function ``s = P(z + r eps > x)``,
* the density ``p`` of ``z + r eps`` at ``x``,

and mixes them by the masses: ``E = sum_j m_j e_j``, ``P = sum_j m_j s_j``. The values
(`piece_values`) are computed on a scale of their own per number of the batch, on which the largest
is about 1, so that logarithms keep their digits however small the values are. Those of normal
pieces come from `_bivariate_tails`, or from `_separate_pieces` where no tail covers them; those of
uniform ones from `interval_means`.

Derivatives (`SmoothedIntegrals`) need no graph of all this: ``de/dx = -s``, ``ds/dx = -p``, by the
heat equation ``de/dr = r p`` and ``ds/dr = -r p'``, and with ``f`` the density of ``z`` in the
piece, at its upper and lower knot ``k`` respectively ``de/dk = +-f(k) (r h((k - x)/r) - e)``,
``ds/dk = +-f(k) (Phi((k - x)/r) - s)``.

Everything is in units of the scale of the normal pieces. Tensors have the pieces, or the
finite knots, in their first dimension (after that of the three integrals).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import torch
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor
from torch.autograd import Function

from botorch_calib.distributions._bivariate_tails import bivariate_tails, off_zero
from botorch_calib.distributions._normal_functions import (
    LEAST,
    TINY,
    less,
    log_h,
    log_normal_interval,
    scaled_tails,
)
from botorch_calib.distributions._separate_pieces import SeparatePieces
from botorch_calib.distributions.form import PiecewiseForm

_SQRT_2PI = math.sqrt(2 * math.pi)
_INV_SQRT_2PI = 1 / math.sqrt(2 * math.pi)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_FAR = 1e30  # stands for an infinite square, without its overflow
# Relative width, (1 + distance from zero) width, below which an interval mean is a short rule.
# There the differences have lost a factor of 20, and the first term that the rule leaves out is
# 0.05^6 / 30240 = 5e-13.
_NARROW = 0.05


# ------------------------------------------------------------------ values


def piece_values(
    x: Tensor,
    r: Tensor,
    knots: Tensor,
    masses: Tensor,
    form: PiecewiseForm,
    with_natural: bool = True,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """``e, s, p`` of all pieces on a scale on which the largest is about 1, without a graph.

    Args:
        x: ``n`` thresholds, float64.
        r: ``n`` positive ratios of the noise to the scale of the normal pieces.
        knots: ``num_finite_knots x n``, or ``x 1`` where they are common.
        masses: ``num_pieces x n``, or ``x 1``; a piece of mass 0 does not count as the largest.
        form: Form of the distribution, which is not a single normal piece without bounds.
        with_natural: Whether the natural masses are asked for.

    Returns:
        The values (``3 x num_pieces x n``), the logarithm of the scale (``n``) by which they
        were divided, and that of the natural masses (``num_pieces x n``): the normal mass
        of a normal piece, the width of a uniform one; None if that was not asked for.
    """
    parts = _parts(x, r, knots, form)
    values, log_scale = _on_one_scale(parts, masses, form)
    if not with_natural:
        return values, log_scale, None
    return values, log_scale, _by_piece(parts, [part.log_natural() for part in parts], dim=0)


def _parts(
    x: Tensor,
    r: Tensor,
    knots: Tensor,
    form: PiecewiseForm,
    like: Sequence[_Part] | None = None,
) -> Sequence[_Part]:
    """The pieces at ``x``, by kind.

    Args:
        x: Thresholds.
        r: Ratios.
        knots: Finite knots.
        form: Form of the distribution.
        like: The same at other thresholds; what does not depend on these is taken from them.
    """
    if not form.around_zero:
        knots = off_zero(knots)
    if not form.covered:  # then natural masses have one row per number too, whatever the part
        knots = knots.expand(-1, len(x))
    t = (knots - x) / r
    parts: list[_Part] = []
    if not all(form.uniform):
        if form.covered:
            tails = _TailPieces if form.only_tails else _NormalPieces
            earlier = None if like is None else like[0]
            assert not isinstance(earlier, (_UniformPieces, SeparatePieces))
            parts.append(tails(x, r, knots, t, form, earlier))
        else:
            parts.append(SeparatePieces(x, r, knots, t, form))
    if any(form.uniform):
        parts.append(_UniformPieces(r, knots, t, form))
    return parts


def _on_one_scale(
    parts: Sequence[_Part], masses: Tensor, form: PiecewiseForm
) -> tuple[Tensor, Tensor]:
    """``e, s, p`` of all pieces over a common scale per number, and its logarithm."""
    if form.covered:
        log_scale = torch.cat([part.levels for part in parts]).amax(dim=0)
    else:
        levels = _by_piece(parts, [part.levels for part in parts], dim=0)
        log_scale = levels.masked_fill(masses == 0.0, -math.inf).amax(dim=0)
    return _by_piece(parts, [part.values(log_scale) for part in parts], dim=1), log_scale


def _by_piece(parts: Sequence[_Part], values: Sequence[Tensor], dim: int) -> Tensor:
    """Rows of several parts in the order of the pieces that they belong to.

    Where all pieces were computed as normal ones, the rows of the uniform pieces are replaced by
    those of `_UniformPieces`, which come later.
    """
    if len(parts) == 1:
        return values[0]
    rows = {
        piece: row
        for part, own in zip(parts, values, strict=True)
        for piece, row in zip(part.pieces, own.unbind(dim), strict=True)
    }
    return torch.stack([rows[piece] for piece in sorted(rows)], dim)


class _TailPieces:
    """Means over the normal tails that lie beyond knots, away from zero.

    They are the tails' integrals over their mass, ``phi(k)`` times the Mills ratio of ``|k|``; the
    first are relative to the density at the distance of their region from the origin, so
    the logarithm of the scale of the means is half the difference of the two squares.
    """

    norm: Tensor
    half: Tensor
    mills_k: Tensor
    offset: Tensor

    def __init__(
        self,
        x: Tensor,
        r: Tensor,
        knots: Tensor,
        t: Tensor,
        form: PiecewiseForm,
        like: _TailPieces | None = None,
    ) -> None:
        ends = {0: 0, len(form.uniform) - 1: len(knots) - 1}
        self.pieces = [j for j in ends if not form.uniform[j]]
        rows = [ends[j] for j in self.pieces]
        self._set_tails(x, r, _rows(knots, rows), _rows(t, rows), like)
        self.levels = self.offset

    def _set_tails(
        self,
        x: Tensor,
        r: Tensor,
        knots: Tensor,
        t: Tensor,
        like: _TailPieces | None,
    ) -> None:
        if like is None:
            self.norm, self.half = (r * r).add_(1.0).sqrt_(), (knots * knots).mul_(0.5)
        else:
            self.norm, self.half = like.norm, like.half
        self.c, mills = x / self.norm, None if like is None else like.mills_k
        tails = bivariate_tails(self.c, knots, t, r, self.norm, mills)
        self.tails, nearest, self.mills_k, self.mills_c = tails
        self.offset = self.half - nearest

    def log_natural(self) -> Tensor:
        """``log Phi(-|k|)``, here from the Mills ratio that the tails needed."""
        return self.mills_k.log().sub_(self.half).sub_(_LOG_SQRT_2PI)

    def values(self, log_scale: Tensor) -> Tensor:
        """``e, s, p`` of the tails over ``exp(log_scale)``, ``3 x num_knots x n``."""
        scale = (self.offset - log_scale).clamp_(LEAST, -LEAST).exp_().div_(self.mills_k)
        return self._in_units(self.tails * scale)

    def _in_units(self, values: Tensor) -> Tensor:
        values[0].mul_(self.norm)
        values[2].div_(self.norm)
        return values


class _NormalPieces(_TailPieces):
    """All pieces as if they were normal ones, by differences of tails.

    With ``N`` the normal mass of the tail beyond a knot and ``T`` the mean over that tail, the
    mean over a piece right of zero is ``(N_low T_low - N_high T_high) / (N_low - N_high)``, left of
    zero that with both signs changed; around zero, both tails are taken from the whole line.

    Beyond a bounded piece the two tails cancel: its own excess far out has an absolute error only,
    which needs a piece further out that covers it. Elsewhere there are `SeparatePieces`.
    """

    low: Tensor
    high: Tensor
    whole: Tensor
    _log_natural: Tensor

    def __init__(
        self,
        x: Tensor,
        r: Tensor,
        knots: Tensor,
        t: Tensor,
        form: PiecewiseForm,
        like: _TailPieces | None = None,
    ) -> None:
        self.form, self.pieces = form, list(range(len(form.uniform)))
        self._set_tails(x, r, knots, t, like)
        self.peak = self.c.clamp(min=0.0).square_().mul_(-0.5)
        self.levels = torch.cat([self.offset, self.peak.unsqueeze(0)])
        if isinstance(like, _NormalPieces):
            self.low, self.high, self.whole = like.low, like.high, like.whole
            self._log_natural = like._log_natural
        else:
            self._set_weights(knots.sign())

    def _set_weights(self, side: Tensor) -> None:
        """Shares of the two tails and of the whole line in the mass of each piece.

        This is `log_normal_interval` once more, on the scale of the density at the end nearer to
        zero and from the Mills ratios that the tails needed: their differences must be those
        of which `values` makes the means. With the sign of the knot in front of its tail
        ``low - high`` is the mass of a piece on either side of zero; for the piece around
        zero it is minus that of both tails, to which the whole line is added.
        """
        ends = self.form.pad(side, -1.0, 1.0)
        around = (ends[1:] - ends[:-1]).mul_(0.5)
        table = torch.stack([self.half, side * self.mills_k], dim=1)
        half, mass = self.form.pad(table, _FAR, _FAR).unbind(1)
        depth = torch.minimum(half[:-1], half[1:]).mul_(1 - around)
        self.low = (depth - half[:-1]).clamp_(min=LEAST).exp_().mul_(mass[:-1])
        self.high = (depth - half[1:]).clamp_(min=LEAST).exp_().mul_(mass[1:])
        natural = torch.add(self.low - self.high, around, alpha=_SQRT_2PI).clamp_(min=TINY)
        self.low.div_(natural)
        self.high.div_(natural)
        self.whole = around.div_(natural)
        self._log_natural = natural.log_().sub_(depth).sub_(_LOG_SQRT_2PI)

    def log_natural(self) -> Tensor:
        """Logarithm of the normal mass of each piece."""
        return self._log_natural

    def values(self, log_scale: Tensor) -> Tensor:
        """``e, s, p`` of the pieces over ``exp(log_scale)``, ``3 x num_pieces x n``."""
        (with_low, low), (with_high, high) = self.form.lows, self.form.highs
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

    def __init__(self, r: Tensor, knots: Tensor, t: Tensor, form: PiecewiseForm) -> None:
        self.pieces = [j for j, flag in enumerate(form.uniform) if flag]
        low = [j - int(form.open_low) for j in self.pieces]
        high = [i + 1 for i in low]
        width = _rows(knots, high) - _rows(knots, low)
        ends = torch.stack([_rows(t, low), _rows(t, high)])
        self.means, offset = interval_means(ends, width / r)
        self.r, self.levels, self.width = r, offset.neg_(), width

    def log_natural(self) -> Tensor:
        """Logarithm of the widths."""
        return self.width.log()

    def values(self, log_scale: Tensor) -> Tensor:
        """``e, s, p`` of the pieces over ``exp(log_scale)``, ``3 x (number of them) x n``."""
        values = self.means * (self.levels - log_scale).clamp_(LEAST, -LEAST).exp_()
        values[0].mul_(self.r)
        values[2].div_(self.r)
        return values


_Part = _TailPieces | _UniformPieces | SeparatePieces


def _rows(values: Tensor, rows: list[int], dim: int = 0) -> Tensor:
    """Some rows of a tensor, without a copy if they are neighbours in order."""
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return values.narrow(dim, rows[0], len(rows))
    parts = values.unbind(dim)
    return torch.stack([parts[i] for i in rows], dim)


def interval_means(ends: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """Means of ``h``, ``Phi`` and ``phi`` over intervals, scaled, without a graph.

    For a uniform piece, ``e / r``, ``s`` and ``p r``, with ``t = (knot - x) / r`` at its ends.

    Wide intervals use the differences of the antiderivatives ``H``, ``h`` and ``Phi``, with
    ``Phi(t) = 1 - Phi(-t)``, ``h(t) = t + h(-t)`` and ``H(t) = (t^2 + 1)/2 - H(-t)`` for
    ``t > 0``; narrow ones, where that cancels, the trapezoidal rule with its first two
    corrections: ``-w/12`` and ``w^3/720`` times the differences of ``g'`` and of ``g'''``.

    Args:
        ends: Lower and upper ends, ``2 x shape``.
        width: Their difference, perhaps known better than from them.

    Returns:
        ``3 x shape``, divided by ``exp(-d^2 / 2)``, and ``d^2 / 2``.
    """
    distance, ramp, sign = ends.abs(), ends.clamp(min=0.0), ends.sign()
    offset = ends[1].clamp(max=0.0).square_().mul_(0.5)
    density = (distance * distance).mul_(-0.5).add_(offset).clamp_(LEAST, 0.0).exp_()
    density.mul_(_INV_SQRT_2PI)
    ndtr, h, big_h = scaled_tails(distance).mul_(density).unbind()
    minus = -density
    first = ends * minus  # phi', phi'' and phi'''
    second = torch.addcmul(minus, ends, first, value=-1)
    third = torch.addcmul(first * -2, ends, second, value=-1)
    below = torch.lerp(1 - ndtr, ndtr, less(ends, 0.0))
    smooth = [ramp + h, below, density, first, second, third]
    low, high = torch.stack([*smooth, h, ndtr * sign, big_h * sign, sign]).unbind(1)
    change = high - low

    # The polynomial parts above zero, of Phi, h and H, are differenced by hand. Where the lower end
    # is positive, the positive part rises by the width itself.
    rise_h, rise_ndtr, rise_big_h, jump = change[6:].unbind()
    climb, jump = torch.minimum(ramp[1], width), jump * 0.5
    square = torch.addcmul(jump, climb, ramp[0] + ramp[1]).mul_(0.5)
    wide = torch.stack([square - rise_big_h, climb + rise_h, jump - rise_ndtr]).div_(width)
    narrow = torch.addcmul((low[:3] + high[:3]).mul_(0.5), change[1:4], width, value=-1 / 12)
    narrow.addcmul_(change[3:6], width * width * width, value=1 / 720)
    relative = torch.minimum(distance[0], distance[1]).add_(1.0).mul_(width)
    return torch.lerp(wide, narrow, relative.lt_(_NARROW)), offset


class SurvivalCurve:
    """``log P(z + r eps > x)``, the log density and its derivatives, as functions of ``x`` alone.

    A piece's density is ``p = int f(z) phi_r(x - z) dz``, with ``phi_r`` the density of ``r eps``
    and ``f`` that of ``z``. By parts ``p' = int f'(z) phi_r(x - z) dz - c``, with ``c`` the change
    of ``f(k) phi_r(x - k)`` from the lower to the upper knot. A uniform piece has ``f' = 0``. A
    normal one has ``f' = -z f``, and given ``z + r eps = x`` the mean of ``z`` is
    ``x / norm^2`` plus such a term again, ``norm^2 = 1 + r^2``: ``p' = -(x p + c) / norm^2``.

    What does not depend on ``x`` is computed at the first one. Nothing here has a graph.

    Args:
        r: As for `SmoothedIntegrals`, like the others.
        knots: Finite knots.
        masses: Masses of the pieces.
        form: Form of the distribution.
    """

    def __init__(self, r: Tensor, knots: Tensor, masses: Tensor, form: PiecewiseForm) -> None:
        self.r, self.knots, self.masses, self.form = r, knots.contiguous(), masses, form
        self._shrink, self._log_r = (r * r).add_(1.0).reciprocal_(), r.log()
        self._parts: Sequence[_Part] | None = None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four at ``n`` points, each ``n``."""
        parts = _parts(x, self.r, self.knots, self.form, self._parts)
        if self._parts is None:
            self.natural = _by_piece(parts, [part.log_natural() for part in parts], dim=0)
            self._set_jumps()
        self._parts = parts
        values, log_scale = _on_one_scale(parts, self.masses, self.form)
        weighted = values[1:] * self.masses
        tail, density = weighted.sum(dim=1).clamp_(min=TINY).unbind()
        is_mixed = len(self._jumps) > 1
        p = (weighted[1] * self.form.is_normal(tail) if is_mixed else weighted[1]).sum(dim=0)
        t = (self.knots - x).div_(self.r)
        noise = log_phi(t).sub_(self._log_r + log_scale).clamp_(LEAST, -LEAST).exp_()
        normal, *flat = (self._sums(jumps * noise, t) for jumps in self._jumps)
        slope = torch.addcmul(normal[0], x, p).mul_(self._shrink).neg_()
        curve = torch.addcmul(p.add_(normal[1]), x, slope).mul_(self._shrink).neg_()
        for change, curved in flat:
            slope, curve = slope - change, curve - curved
        slope = slope.div_(density)
        curve = torch.addcmul(curve.div_(density), slope, slope, value=-1)
        return tail.log_().add_(log_scale), density.log_().add_(log_scale), slope, curve

    def _set_jumps(self) -> None:
        """How much ``m f`` falls at each knot, apart for normal and uniform pieces, if any."""
        log_shape, is_normal = log_phi(self.knots), self.form.is_normal(self.natural)
        kinds = [is_normal, 1.0 - is_normal] if any(self.form.uniform) else [None]
        columns = (values.shape[1] for values in (self.knots, self.natural, self.masses))
        zeros = self.knots.new_zeros(len(self.knots), max(columns))
        self._jumps = [zeros.clone() for _ in kinds]
        for sign, (pieces, rows) in ((1, self.form.highs), (-1, self.form.lows)):
            log_f = log_shape[rows]
            if kinds[0] is not None:
                log_f = log_f * is_normal[pieces]
            f = (log_f - self.natural[pieces]).clamp_(LEAST, -LEAST).exp_()
            share = f * self.masses[pieces]
            for jumps, kind in zip(self._jumps, kinds, strict=True):
                jumps[rows].add_(share if kind is None else share * kind[pieces], alpha=sign)

    def _sums(self, edge: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Of terms at the knots, and of their derivatives by ``x``."""
        return edge.sum(dim=0), (edge * t).sum(dim=0).div_(self.r)

    def logs_at(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``log s`` and ``log p`` of the pieces at ``x``, once there has been another point."""
        parts = _parts(x, self.r, self.knots, self.form, self._parts)
        values, log_scale = _on_one_scale(parts, self.masses, self.form)
        log_s, log_p = values[1:].clamp_(min=TINY).log_().add_(log_scale).unbind()
        return log_s, log_p


# ------------------------------------------------------------------ derivatives


def log_densities(
    x: Tensor, r: Tensor, knots: Tensor, form: PiecewiseForm
) -> tuple[Tensor, Tensor]:
    """``log p`` and the logarithm of the natural mass of each piece, with a graph.

    The density is that of all of ``z + r eps`` at ``x`` times the mass of the piece in what ``z``
    is, given this; that of a normal piece is a difference of normal probabilities again.
    """
    t = (knots - x) / r
    ends = form.pad(knots, -math.inf, math.inf)
    density = mass = None
    if not all(form.uniform):
        norm = (1 + r.square()).sqrt()
        # Given z + r eps = x, a normal piece's z is N(x / norm^2, (r / norm)^2).
        inner = form.pad((t + r * knots) / norm, -math.inf, math.inf)
        mass = log_normal_interval(ends[:-1], ends[1:])
        density = log_normal_interval(inner[:-1], inner[1:]) + (log_phi(x / norm) - norm.log())
    if any(form.uniform):
        inner = form.pad(t, -math.inf, math.inf)
        width = ends.diff(dim=0).log()
        flat = log_normal_interval(inner[:-1], inner[1:])
        if density is None or mass is None:
            density, mass = flat, width
        else:
            normal = form.is_normal(width) > 0
            density, mass = torch.where(normal, density, flat), torch.where(normal, mass, width)
    assert density is not None and mass is not None
    return density - mass, mass


def _shares(weight: Tensor, logs: Tensor, log_total: Tensor) -> Tensor:
    """``weight * exp(logs - log_total)``, without overflow."""
    return (logs - log_total).clamp(LEAST, -LEAST).exp() * weight


class _Derivatives:
    """Products of weights ``w_j`` with the derivatives of ``e_j / total`` or ``s_j / total``.

    Here ``total`` is a constant: with ``w = m`` and ``total = E`` their sum over the pieces is
    a derivative of ``log E``. The logarithms are those of ``e``, ``s`` and ``p``, or, for
    `of_survival` alone, of ``s`` and ``p``.
    """

    def __init__(
        self,
        arguments: tuple[Tensor, Tensor, Tensor],
        logs: tuple[Tensor, ...],
        natural: Tensor | None,
        form: PiecewiseForm,
        need_knots: bool,
    ) -> None:
        self.x, self.r, self.knots = arguments
        self.logs, self._natural = torch.stack(logs), natural
        self.form, self.need_knots = form, need_knots

    @cached_property
    def natural(self) -> Tensor:
        """Logarithm of the natural mass of each piece."""
        if self._natural is None:
            return log_densities(self.x, self.r, self.knots, self.form)[1]
        return self._natural

    @cached_property
    def t(self) -> Tensor:
        """The knots in units of the noise, from ``x``."""
        return (self.knots - self.x) / self.r

    @cached_property
    def ends(self) -> list[tuple[slice, slice, Tensor]]:
        """``log f`` at the upper and at the lower knots, with the rows of pieces and knots."""
        log_shape, ends = log_phi(self.knots), []
        for pieces, rows in (self.form.highs, self.form.lows):
            log_f = log_shape[rows]
            if any(self.form.uniform):
                log_f = log_f * self.form.is_normal(self.natural)[pieces]
            ends.append((pieces, rows, log_f - self.natural[pieces]))
        return ends

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
        own, density = _shares(weight, self.logs[-2:], log_total).unbind()
        by_ratio = self.survival_by_ratio(weight, density, log_total)
        by_knots = None
        if self.need_knots:
            by_knots = self.by_knots(weight, own, log_ndtr(self.t), log_total)
        return [-density.sum(dim=0), by_ratio, by_knots]

    def by_knots(self, weight: Tensor, own: Tensor, log_g: Tensor, log_total: Tensor) -> Tensor:
        """By the knots, for means of ``g`` over the pieces; ``own`` is ``w_j mean_j / total``.

        A knot that moves by ``dk`` adds ``f(k) dk`` at ``k`` to the upper end of a piece and, since
        the mass stays the same, thins the rest: ``d mean_j / dk = f(k) (g(k) - mean_j)``.
        """
        sides = []
        for pieces, rows, log_f in self.ends:
            total = log_total if log_total.dim() == 1 else log_total[pieces]
            at_knot = _shares(weight[pieces], log_g[rows], total)
            sides.append((at_knot - own[pieces]) * log_f.exp())
        up = sides[0] if self.form.open_low else _with_zero(sides[0], first=True)
        down = sides[1] if self.form.open_high else _with_zero(sides[1], first=False)
        return up - down

    def survival_by_ratio(self, weight: Tensor, density: Tensor, log_total: Tensor) -> Tensor:
        """Of ``s`` by ``r``: ``-r p'``, by parts; ``density`` holds ``w_j p_j / total``.

        ``p'(x) = int f'(z) phi_r(x - z) dz`` less the boundary term ``f phi_r`` at the knots; it
        is nothing but that for a uniform piece. For a normal one ``f' = -z f``, and given
        ``z + r eps = x`` the mean of ``z`` is ``x / norm^2`` plus such boundary terms.
        """
        norm2 = 1 + self.r * self.r
        is_normal = self.form.is_normal(weight)
        result = (is_normal * density).sum(dim=0) * (self.r * self.x / norm2)
        weight = weight / torch.where(is_normal > 0, norm2, torch.ones_like(norm2))
        log_density = log_phi(self.t)
        for sign, (pieces, rows, log_f) in zip((1, -1), self.ends, strict=True):
            total = log_total if log_total.dim() == 1 else log_total[pieces]
            edge = _shares(weight[pieces], log_f + log_density[rows], total)
            result = result + sign * edge.sum(dim=0)
        return result


def _with_zero(rows: Tensor, first: bool) -> Tensor:
    zero = rows.new_zeros(1, *rows.shape[1:])  # there may be no rows
    return torch.cat([zero, rows] if first else [rows, zero])


class SmoothedIntegrals(Function):
    """``log E(z + r eps - x)+`` and ``log P(z + r eps > x)``, differentiable to any order.

    The pieces' ``log e`` and ``log s`` are outputs too: the backward pass is made of them,
    and can so be differentiated again.

    Args:
        x: ``n`` thresholds, float64.
        r: ``n`` positive ratios of the noise to the scale of the normal pieces.
        knots: ``num_finite_knots x n``, or ``x 1`` where they are common.
        masses: ``num_pieces x n``, or ``x 1``; may hold zeros.
        form: Form of the distribution, which is not a single normal piece without bounds.

    Returns:
        Log excess and log survival function, ``n``; those of the pieces, ``num_pieces x n``; and
        the log density at ``x``, ``n``, which has no gradient.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, r: Tensor, knots: Tensor, masses: Tensor, form: PiecewiseForm
    ) -> tuple[Tensor, ...]:
        # The derivatives that matter most of a stretched form do without the natural masses.
        values, log_scale, natural = piece_values(
            x, r, knots.contiguous(), masses, form, with_natural=not form.stretched
        )
        values.clamp_(min=TINY)
        totals = (values * masses).sum(dim=1).clamp_(min=TINY).log_() + log_scale
        log_excess, log_survival, log_density = totals.unbind()
        log_e, log_s, log_p = (values.log_() + log_scale).unbind()
        outputs = (log_excess, log_survival, log_e, log_s)
        ctx.save_for_backward(x, r, knots, masses, *outputs, log_p, natural)
        ctx.form = form
        ctx.mark_non_differentiable(log_density)
        ctx.set_materialize_grads(False)
        return (*outputs, log_density)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        x, r, knots, masses, log_excess, log_survival, log_e, log_s, *rest = ctx.saved_tensors
        if torch.is_grad_enabled():  # then densities and natural masses need a graph
            rest = log_densities(x, r, knots, ctx.form)
        log_p, natural = rest
        need_knots, need_masses = ctx.needs_input_grad[2:4]
        # In units of the scale these are the same whatever the scale: it is made of them.
        need_knots = need_knots and not ctx.form.stretched
        logs = (log_e, log_s, log_p)
        terms = _Derivatives((x, r, knots), logs, natural, ctx.form, need_knots)
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


class SmoothedExcess(Function):
    """The first output of `SmoothedIntegrals`, differentiable to any order.

    With ``de/dx = -s`` and ``de/dr = r p`` its derivatives by ``x`` and ``r`` need no more than the
    ratios ``S / E`` and ``P / E`` of the totals on their common scale. (Of the difference of two
    logarithms of order ``x^2`` rounding would leave nothing far out, and the exponential explode.)
    The pieces' own logarithms are taken only where knots or masses ask for them. Where
    derivatives are to be differentiated again, the graph of `SmoothedIntegrals` takes their place.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, r: Tensor, knots: Tensor, masses: Tensor, form: PiecewiseForm
    ) -> Tensor:
        # In units of the scale knots of a stretched form are the same whatever the scale.
        need_knots = ctx.needs_input_grad[2] and not form.stretched
        need_masses = ctx.needs_input_grad[3]
        values, log_scale, natural = piece_values(
            x, r, knots.contiguous(), masses, form, with_natural=need_knots
        )
        totals = (values * masses).sum(dim=1).clamp_(min=TINY)
        ratios = totals[1:] / totals[0]
        log_excess = totals[0].log().add_(log_scale)
        pieces = (values[0], log_scale, natural) if need_knots or need_masses else ()
        ctx.save_for_backward(x, r, knots, masses, log_excess, ratios, *pieces)
        ctx.form, ctx.needs = form, (need_knots, need_masses)
        return log_excess

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, r, knots, masses, total, ratios, *pieces = ctx.saved_tensors
        arguments, needed = (x, r, knots, masses), ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():
            inputs = [v for v, need in zip(arguments, needed, strict=True) if need]
            log_excess, *_ = SmoothedIntegrals.apply(*arguments, ctx.form)
            found = iter(
                torch.autograd.grad(log_excess, inputs, grad, create_graph=True, allow_unused=True)
            )
            return (*(next(found) if need else None for need in needed), None)
        by_x, by_r = (grad * ratios).unbind()
        by_knots = by_masses = None
        if pieces:
            excess, log_scale, natural = pieces
            log_e = excess.clamp(min=TINY).log_().add_(log_scale)
            by_masses = _shares(grad, log_e, total)
            if ctx.needs[0]:
                terms = _Derivatives(arguments[:3], (log_e,), natural, ctx.form, True)
                log_g = log_h(terms.t) + r.log()
                by_knots = terms.by_knots(grad * masses, by_masses * masses, log_g, total)
        return -by_x, r * by_r, by_knots, by_masses if ctx.needs[1] else None, None


def survival_derivatives(
    grad: Tensor,
    x: Tensor,
    r: Tensor,
    knots: Tensor,
    masses: Tensor,
    form: PiecewiseForm,
    needs: tuple[bool, bool, bool],
    survival: SurvivalCurve | None,
) -> tuple[Tensor | None, ...]:
    """``grad`` times the derivatives of ``P(z + r eps > x)`` over the density at ``x``.

    Args:
        grad: ``n`` numbers.
        x: ``n`` thresholds.
        r: As for `SmoothedIntegrals`.
        knots: As for `SmoothedIntegrals`.
        masses: As for `SmoothedIntegrals`.
        form: Form of the distribution.
        needs: Whether those by ``r``, ``knots`` and ``masses`` are needed.
        survival: The probability as a function of ``x``; not needed for a graph.

    Returns:
        Those by ``r``, ``knots`` and ``masses``, None where not needed; with a graph if gradients
        are enabled.
    """
    if torch.is_grad_enabled():
        _, _, _, log_s, _ = SmoothedIntegrals.apply(x, r, knots, masses, form)
        log_p, natural = log_densities(x, r, knots, form)
    else:
        assert survival is not None
        (log_s, log_p), natural = survival.logs_at(x), survival.natural
    log_total = (log_p + masses.clamp(min=TINY).log()).logsumexp(dim=0)
    terms = _Derivatives((x, r, knots), (log_s, log_p), natural, form, needs[1])
    _, by_ratio, by_knots = terms.of_survival(grad * masses, log_total)
    by_masses = _shares(grad, log_s, log_total) if needs[2] else None
    parts = zip((by_ratio, by_knots, by_masses), (r, knots, masses), needs, strict=True)
    return tuple(
        part.sum_to_size(of.shape) if need and part is not None else None
        for part, of, need in parts
    )


def _sum(terms: Iterable[Tensor | None]) -> Tensor | None:
    present = [term for term in terms if term is not None]
    return sum(present[1:], present[0]) if present else None
