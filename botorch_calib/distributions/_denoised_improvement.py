r"""Improvement under a piecewise distribution smoothed by Gaussian noise, with its derivatives.

The integrals of its pieces (`botorch_calib.distributions._denoised_pieces`), the excess ``e_j``,
the survival function ``s_j`` and the density ``p_j``, are mixed by the masses:
``E = sum_j m_j e_j``, ``P = sum_j m_j s_j``.

Derivatives (`SmoothedIntegrals`) need no graph of all this: ``de/dx = -s``, ``ds/dx = -p``, by the
heat equation ``de/dr = r p`` and ``ds/dr = -r p'``, and with ``f`` the density of ``z`` in the
piece, at its upper and lower knot ``k`` respectively ``de/dk = +-f(k) (r h((k - x)/r) - e)``,
``ds/dk = +-f(k) (Phi((k - x)/r) - s)``.

Everything is in units of the scale of the normal pieces. Tensors have the pieces, or the
finite knots, in their first dimension.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import torch
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor
from torch.autograd import Function

from botorch_calib.distributions._denoised_pieces import piece_values
from botorch_calib.distributions._normal_functions import LEAST, TINY, log_h, log_normal_interval
from botorch_calib.distributions._survival_curve import SurvivalCurve
from botorch_calib.distributions.form import PiecewiseForm


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
