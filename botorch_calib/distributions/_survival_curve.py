"""`SurvivalCurve`: ``P(z + r eps > x)`` as a function of ``x``, for the search for a quantile."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.utils.probability.utils import log_phi
from torch import Tensor

from botorch_calib.distributions._denoised_pieces import Part, by_piece, on_one_scale, parts_at
from botorch_calib.distributions._normal_functions import LEAST, TINY
from botorch_calib.distributions.form import PiecewiseForm


class SurvivalCurve:
    """``log P(z + r eps > x)``, the log density and its derivatives, as functions of ``x`` alone.

    A piece's density is ``p = int f(z) phi_r(x - z) dz``, with ``phi_r`` the density of ``r eps``
    and ``f`` that of ``z``. By parts ``p' = int f'(z) phi_r(x - z) dz - c``, with ``c`` the change
    of ``f(k) phi_r(x - k)`` from the lower to the upper knot. A uniform piece has ``f' = 0``. A
    normal one has ``f' = -z f``, and given ``z + r eps = x`` the mean of ``z`` is
    ``x / norm^2`` plus such a term again, ``norm^2 = 1 + r^2``: ``p' = -(x p + c) / norm^2``.

    What does not depend on ``x`` is computed at the first one. Nothing here has a graph.

    Args:
        r: ``n`` positive ratios of the noise to the scale of the normal pieces, float64.
        knots: Finite knots, ``num_finite_knots x n``, or ``x 1``.
        masses: Masses of the pieces, ``num_pieces x n``, or ``x 1``.
        form: Form of the distribution.
    """

    def __init__(self, r: Tensor, knots: Tensor, masses: Tensor, form: PiecewiseForm) -> None:
        self.r, self.knots, self.masses, self.form = r, knots.contiguous(), masses, form
        self._shrink, self._log_r = (r * r).add_(1.0).reciprocal_(), r.log()
        self._parts: Sequence[Part] | None = None

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The four at ``n`` points, each ``n``."""
        parts = parts_at(x, self.r, self.knots, self.form, self._parts)
        if self._parts is None:
            self.natural = by_piece(parts, [part.log_natural() for part in parts], dim=0)
            self._set_jumps()
        self._parts = parts
        values, log_scale = on_one_scale(parts, self.masses, self.form)
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
        parts = parts_at(x, self.r, self.knots, self.form, self._parts)
        values, log_scale = on_one_scale(parts, self.masses, self.form)
        log_s, log_p = values[1:].clamp_(min=TINY).log_().add_(log_scale).unbind()
        return log_s, log_p
