r"""Integrals of a piecewise distribution smoothed by Gaussian noise, piece by piece.

Let ``z`` be distributed by pieces and ``eps`` standard normal. Of each piece, taken as a
distribution of its own, `piece_values` computes

* the excess ``e = E(z + r eps - x)+``,
* the survival function ``s = P(z + r eps > x)``,
* the density ``p`` of ``z + r eps`` at ``x``,

without a graph, on a scale of its own per number of the batch, on which the largest is about 1, so
that logarithms keep their digits however small the values are. Those of normal pieces come from
`_bivariate_tails`, or from `_separate_pieces` where no tail covers them; those of uniform ones from
`interval_means`.

Everything is in units of the scale of the normal pieces. Tensors have the pieces, or the
finite knots, in their first dimension (after that of the three integrals).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from botorch_calib.distributions._bivariate_tails import bivariate_tails, off_zero
from botorch_calib.distributions._normal_functions import LEAST, TINY, less, scaled_tails
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
    parts = parts_at(x, r, knots, form)
    values, log_scale = on_one_scale(parts, masses, form)
    if not with_natural:
        return values, log_scale, None
    return values, log_scale, by_piece(parts, [part.log_natural() for part in parts], dim=0)


def parts_at(
    x: Tensor,
    r: Tensor,
    knots: Tensor,
    form: PiecewiseForm,
    like: Sequence[Part] | None = None,
) -> Sequence[Part]:
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
    parts: list[Part] = []
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


def on_one_scale(
    parts: Sequence[Part], masses: Tensor, form: PiecewiseForm
) -> tuple[Tensor, Tensor]:
    """``e, s, p`` of all pieces over a common scale per number, and its logarithm."""
    if form.covered:
        log_scale = torch.cat([part.levels for part in parts]).amax(dim=0)
    else:
        levels = by_piece(parts, [part.levels for part in parts], dim=0)
        log_scale = levels.masked_fill(masses == 0.0, -math.inf).amax(dim=0)
    return by_piece(parts, [part.values(log_scale) for part in parts], dim=1), log_scale


def by_piece(parts: Sequence[Part], values: Sequence[Tensor], dim: int) -> Tensor:
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


Part = _TailPieces | _UniformPieces | SeparatePieces


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
