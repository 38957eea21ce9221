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
from typing import Any

import torch
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor
from torch.autograd import Function

from botorch_calib.distributions._pieces import TINY, Layout, piece_values
from botorch_calib.distributions._special import LEAST, log_h, log_normal_interval


@torch.no_grad()
def tail_and_density(
    x: Tensor, r: Tensor, knots: Tensor, masses: Tensor, layout: Layout
) -> tuple[Tensor, Tensor]:
    """`smoothed_tail` without a graph."""
    values, log_scale, _ = piece_values(x, r, knots.contiguous(), layout)
    totals = (values[1:] * masses).sum(dim=1).clamp_(min=TINY).log_() + log_scale
    return totals[0], totals[1]


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
        values, log_scale, natural = piece_values(x, r, knots.contiguous(), layout)
        values.clamp_(min=TINY)
        totals = (values * masses).sum(dim=1).clamp_(min=TINY).log_() + log_scale
        log_excess, log_survival, log_density = totals.unbind()
        log_e, log_s, log_p = (values.log_() + log_scale).unbind()
        outputs = (log_excess, log_survival, log_e, log_s)
        ctx.save_for_backward(x, r, knots, masses, *outputs, log_p, natural)
        ctx.layout = layout
        ctx.mark_non_differentiable(log_density)
        ctx.set_materialize_grads(False)
        return (*outputs, log_density)

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
    log_excess, log_survival, *_ = _SmoothedIntegrals.apply(x, r, knots, masses, layout)
    return log_excess, log_survival


def smoothed_tail(
    x: Tensor, r: Tensor, knots: Tensor, masses: Tensor, layout: Layout
) -> tuple[Tensor, Tensor]:
    """``log P(z + r eps > x)``, and the log density at ``x``, which has no gradient.

    Arguments as for `smoothed_integrals`.
    """
    _, log_survival, *_, log_density = _SmoothedIntegrals.apply(x, r, knots, masses, layout)
    return log_survival, log_density
