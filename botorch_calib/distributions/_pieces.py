r"""Excess, survival function and density of each piece of a smoothed law, without a graph.

Everything is computed on a scale of its own per number of the batch, so that logarithms keep
their digits; `_smoothed_integrals` adds the derivatives. Tensors here have the pieces, or the
finite knots, in their first dimension (after that of the three integrals).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_calib.distributions._bivariate_normal import bivariate_tails, interval_means, off_zero
from botorch_calib.distributions._special import LEAST, less

_SQRT_2PI = math.sqrt(2 * math.pi)
_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
TINY = 1e-280
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


def piece_values(
    x: Tensor, r: Tensor, knots: Tensor, layout: Layout
) -> tuple[Tensor, Tensor, Tensor]:
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
        natural = torch.add(self.low - self.high, around, alpha=_SQRT_2PI).clamp_(min=TINY)
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
