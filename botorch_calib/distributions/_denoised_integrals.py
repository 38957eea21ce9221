r"""Expected excess, survival function and density of smoothed piecewise distributions.

Let ``z`` have a piecewise distribution, let ``eps`` be standard normal, and let ``r`` be the
standard deviation of the noise. This module computes the excess ``E = E(z + r eps - x)+``, the
survival function ``S = P(z + r eps > x)`` and the density ``p`` of ``z + r eps`` at ``x``, each as
the mean over the pieces, weighted by their masses. ``norm`` is ``sqrt(1 + r^2)``, and ``h(t) =
phi(t) + t Phi(t)``.

Without noise, all integrals have a closed form. With noise, if both outer pieces are tails of a
normal distribution (`PiecewiseForm.covered`):

* An integral over a normal piece is the difference of integrals over the tails beyond its knots,
  on the side away from zero (`bivariate_tails`). For the piece around zero, the integral over the
  whole normal distribution is added.
* Uniform pieces are integrated by Gauss-Legendre rules on both sides of ``x``.
* A stretched form (see `PiecewiseForm`) differs from the normal distribution by one smooth
  integral.

Other distributions with noise are integrated piece by piece (`_piece_integrals`).

*Derivatives.* ``dE/dx = -S`` and ``dS/dx = -p``. The heat equation gives ``dE/dr = r p`` and
``dS/dr = -r p'``. If ``z``, ``x`` and ``r`` are multiplied by a scale, so is ``E``, and ``S`` does
not change, which gives the derivatives in the scale. If the upper knot ``k`` of a piece with the
density ``f`` moves by ``dk``, the added part has the mass ``f(k) dk``, and the density of the whole
piece decreases to keep its mass. First derivatives need no graph; second derivatives use the graph
of `_piece_integrals`.

The values for each ``x`` are divided by ``exp(log_scale)``, so that logarithms of numbers like
``exp(-700)`` keep their digits. Lengths are in units of the standard deviation of the normal pieces
before truncation. The first dimension of a tensor is the dimension of the pieces or of the finite
knots.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import pad

from botorch_calib.distributions import _normal_functions as nf
from botorch_calib.distributions._bivariate_tails import bivariate_tails, off_zero, scale_beyond
from botorch_calib.distributions._piece_integrals import log_integrals_by_pieces, piece_logs
from botorch_calib.distributions.form import Pieces, PiecewiseForm
from botorch_calib.distributions.piecewise import PiecewisePredictive

_SQRT_2, _SQRT_PI = math.sqrt(2.0), math.sqrt(math.pi)
# Range of the ratio of the noise to the scale. Outside this range, the smaller of the two
# contributes less than 1e-12 of the variance, so it is raised to the end of the range.
MIN_RATIO, MAX_RATIO = 1e-6, 1e6
_ORDER = 20  # nodes on each side of x, for a uniform piece
_NODES = 32  # nodes for a stretched form
_CUT = 72.0  # quadrature ends where the integrand has decreased by a factor of exp(36)
EXCESS, SURVIVAL = 0, 1


def held_ratio(scale: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale, and the ratio of the noise to it, from `MIN_RATIO` to `MAX_RATIO`.

    A scale below ``noise / MAX_RATIO``, which has no effect, is raised to this limit.
    """
    scale = torch.maximum(scale, noise * (1.0 / MAX_RATIO))
    return scale, (noise / scale).clamp(min=MIN_RATIO)


def log_densities(x: Tensor, r: Tensor, pieces: Pieces) -> Tensor:
    """Return the log density of ``z + r eps`` at ``x`` for each piece, ``num_pieces x n``.

    For a normal piece, it is the density of ``N(0, 1 + r^2)`` at ``x``, times the probability that
    a normal ``z`` is in the piece given ``z + r eps = x``, divided by the unconditional probability
    that a normal ``z`` is in the piece.
    """
    knots, _, form = pieces
    t = (knots - x) / r
    ends, normal = form.pad(knots), form.is_normal(x.device)
    norm = (1 + r.square()).sqrt()
    # Given z + r eps = x, a standard normal z is distributed as N(x / norm^2, (r / norm)^2).
    inner = form.pad((t + r * knots) / norm)
    density = nf.log_normal_interval(inner[:-1], inner[1:]) + (log_phi(x / norm) - norm.log())
    density = density - nf.log_normal_interval(ends[:-1], ends[1:])
    if not any(form.uniform):
        return density
    inner, width = form.pad(t), ends.diff(dim=0)
    flat = nf.log_normal_interval(inner[:-1], inner[1:]) - width.masked_fill(normal, 1.0).log()
    return torch.where(normal, density, flat)


def pieces_of(standard: PiecewisePredictive, shape: torch.Size) -> Pieces:
    """Return the `Pieces` of a distribution of scale 1 at ``n = shape.numel()`` points."""
    knots, masses = (pieces_first(v, shape) for v in (standard.finite_knots, standard.masses))
    return Pieces(knots, masses, standard.form)


def pieces_first(values: Tensor, shape: torch.Size) -> Tensor:
    """Reshape ``batch_shape x K`` to ``K x shape.numel()``, or to ``K x 1`` for a single point."""
    num = values.shape[-1]
    if values.numel() == num:
        return values.reshape(num, 1)
    return values.expand(*shape, num).reshape(shape.numel(), num).t()


class Parts(NamedTuple):
    """Properties of the pieces that do not depend on ``x``, ``... x n`` or ``... x 1`` each."""

    jumps: Tensor  # jumps of the density of the normal pieces at each finite knot
    steps: Tensor | None  # jumps of the density of the uniform pieces; None if no piece is uniform
    at_low: Tensor  # density of each piece, normalised to mass 1, at its lower end
    at_high: Tensor  # density of each piece, normalised to mass 1, at its upper end
    normal: nf.NormalShares


@torch.no_grad()
def parts_of(pieces: Pieces) -> Parts:
    knots, masses, form = pieces
    if form.stretched:
        return _stretched_parts(form, knots.device)
    ends = form.pad(knots, -nf.FAR, nf.FAR)
    shares = nf.NormalShares(ends)
    at_low, at_high = shares.at_low, shares.at_high
    if not any(form.uniform):
        jumps = _jumps(masses * at_low, masses * at_high, form)
        return Parts(jumps, None, at_low, at_high, shares)
    normal = form.is_normal(knots.device)
    flat = ~normal / ends.diff(dim=0).masked_fill(normal, 1.0)
    at_low, at_high, heights = at_low * normal, at_high * normal, masses * flat
    shares.around.mul_(normal)  # a uniform piece around zero adds no normal distribution
    jumps = _jumps(masses * at_low, masses * at_high, form)
    steps = _jumps(heights, heights, form)
    return Parts(jumps, steps, at_low + flat, at_high + flat, shares)


@nf.cached_constant
def _stretched_parts(form: PiecewiseForm, device: torch.device) -> Parts:
    half = 0.5 * form.stretched
    end = float(nf.upper_score(half))
    knots = torch.tensor([[-end], [end]], dtype=torch.float64, device=device)
    masses = knots.new_tensor([[half], [1.0 - form.stretched], [half]])
    return parts_of(Pieces(knots, masses, replace(form, stretched=0.0)))


def _jumps(above: Tensor, below: Tensor, form: PiecewiseForm) -> Tensor:
    """Return jumps at the finite knots, given the density at the pieces' lower and upper ends."""
    jumps = pad(above, (0, 0, 0, 1)) - pad(below, (0, 0, 1, 0))
    return jumps[int(form.open_low) : len(jumps) - int(form.open_high)]


def _log_integral(
    which: int,
    x: Tensor,
    noise: Tensor | None,
    pieces: Pieces,
    parts: Parts | None = None,
    scale: Tensor | None = None,
) -> Tensor:
    """Return `log_excess` or `log_survival`, at least `LOG_ZERO`, differentiable to any order.

    Args:
        which: `EXCESS` or `SURVIVAL`.
        x: Thresholds ``n``, float64.
        noise: Standard deviations of the noise, ``n``; None without noise.
        pieces: Any pieces, except for a single normal piece without bounds.
        parts: Result of `parts_of` for these pieces, if available.
        scale: Scales of the normal pieces, ``n``, in the units of ``x`` and ``noise`` (default: 1).

    """
    knots, masses, form = pieces
    scale = torch.ones_like(x) if scale is None else scale
    if form.stretched and (knots.requires_grad or masses.requires_grad):
        form = replace(form, stretched=0.0)  # a stretched form treats its knots as constants
    if noise is not None and not form.covered:
        return _by_pieces(x, noise, scale, pieces, which)
    pieces = Pieces(off_zero(knots), masses, form)
    parts = parts_of(pieces) if parts is None else parts
    out: Tensor = _Integral.apply(x, noise, scale, *pieces, parts, which)
    return out


#: ``log E(scale z + noise eps - x)+``, with the arguments of `_log_integral` after ``which``.
log_excess = partial(_log_integral, EXCESS)
#: ``log P(scale z + noise eps > x)``.
log_survival = partial(_log_integral, SURVIVAL)


def _by_pieces(
    x: Tensor, noise: Tensor | None, scale: Tensor, pieces: Pieces, which: int
) -> Tensor:
    """Return `_log_integral` for any form, computed by differentiable operations."""
    ratio = None
    if noise is not None:
        scale, ratio = held_ratio(scale, noise)
    value = log_integrals_by_pieces(x / scale, ratio, pieces)[which]
    return value + scale.log() if which == EXCESS else value


class Values:
    """Values at ``x`` of ``E``, ``S`` and ``p`` of the module docstring, without a graph."""

    totals: Tensor  # ``E`` and ``S``, ``2 x n``
    density: Tensor  # ``p``, ``n``
    log_scale: Tensor  # values are divided by its exponential, ``n``
    # Part of ``p`` from normal pieces, ``n``; set only with noise or for stretched forms
    normal_density: Tensor
    # ``E``, ``S`` and ``p`` of each piece, normalised to mass 1, ``3 x num_pieces x n``; not set
    # for stretched forms
    of_pieces: Callable[[], Tensor]

    def __init__(self, x: Tensor, r: Tensor | None, pieces: Pieces, parts: Parts) -> None:
        if pieces.form.stretched:
            values = self._stretched(x, r, pieces.form.stretched)
        elif r is None:
            values = self._without_noise(x, pieces)
        else:
            values = self._with_noise(x, r, pieces, parts)
        self.totals, self.density = values[:2].clamp_(min=0.0), values[2]

    def _without_noise(self, x: Tensor, pieces: Pieces) -> Tensor:
        """Return ``E``, ``S``, ``p`` of ``z``, ``3 x n``; set ``log_scale`` and ``of_pieces``."""
        (log_e, log_s), natural = piece_logs(x, None, pieces)
        knots, masses, form = pieces
        ends = form.pad(knots)
        log_p = torch.where(form.is_normal(x.device), log_phi(x), 0.0).expand_as(log_e)
        log_p = log_p.masked_fill((x < ends[:-1]) | (x >= ends[1:]), 2 * nf.LOG_ZERO)
        log_s = log_s.sub_(natural).masked_fill_(x <= ends[:-1], 0.0)
        logs = torch.stack([log_e.sub_(natural), log_s, log_p - natural])
        levels = logs[:2].amax(dim=0).masked_fill(masses == 0.0, nf.LOG_ZERO)
        self.log_scale = levels.amax(dim=0).clamp_(min=nf.LOG_ZERO)
        values = (logs - self.log_scale).clamp_(nf.LEAST, -nf.LEAST).exp_()
        values.masked_fill_(logs <= nf.LOG_ZERO, 0.0)
        self.of_pieces = lambda: values
        return (values * masses).sum(dim=1)

    def _stretched(self, x: Tensor, r: Tensor | None, alpha: float) -> Tensor:
        """Return ``E``, ``S`` and ``p`` of a stretched form, with or without noise, ``3 x n``.

        They are the values for a standard normal ``z`` plus the corrections from `_beside_normal`.
        The attributes ``log_scale`` and ``normal_density`` are set.
        """
        norm = torch.ones_like(x) if r is None else (r * r).add_(1.0).sqrt_()
        c = x / norm
        self.log_scale = c.clamp(min=0.0).square_().mul_(-0.5)
        values = _whole_line(c, norm, nf.first_tails(c.abs()))
        change, flat = _beside_normal(x, r, alpha, self.log_scale)
        values.add_(change)
        self.normal_density = values[2] - flat
        return values

    def _with_noise(self, x: Tensor, r: Tensor, pieces: Pieces, parts: Parts) -> Tensor:
        """Return ``E``, ``S`` and ``p`` for a covered form, ``3 x n``; set the other attributes.

        Normal pieces contribute a sum over the finite knots: the integral over the normal tail
        beyond each knot, times the jump of the density at this knot.
        """
        knots, masses, form = pieces
        norm = (r * r).add_(1.0).sqrt_()
        c = x / norm
        ratios, side = nf.first_tails(c.abs()), knots.sign()
        self.log_scale, log_at_c = scale_beyond(x, c, r, norm, knots[-1].clamp(min=0.0))
        tails = bivariate_tails(x, c, r, norm, knots, ratios, parts.normal.mills[1:-1], log_at_c)
        tails[0].mul_(norm)
        tails[2].div_(norm)
        tails.mul_(side)
        whole = _whole_line(c, norm, ratios)
        # Convert from units of the density at max(c, 0) to exp(log_scale), by a factor up to 1.
        whole.mul_(log_at_c.masked_fill(c < 0.0, 0.0).clamp_(min=nf.LEAST).exp_())
        values = (tails * parts.jumps).sum(dim=1)
        values.addcmul_(whole, (masses * parts.normal.around).sum(dim=0))
        self.normal_density = values[2]
        flat: dict[int, Tensor] = {}
        if any(form.uniform):
            rows = [i for i, is_flat in enumerate(form.uniform) if is_flat]
            low, high = _rows(knots, [i - 1 for i in rows]), _rows(knots, rows)
            flats = _flats(x, r, low, high, self.log_scale).mul_(_rows(parts.at_low, rows))
            flat = dict(zip(rows, flats.unbind(1), strict=True))
            values = values + (flats * _rows(masses.expand(len(form.uniform), -1), rows)).sum(dim=1)

        def of_pieces() -> Tensor:
            above = parts.at_low[1:] * tails
            each = pad(above, (0, 0, 1, 0)) - pad(parts.at_high[:-1] * tails, (0, 0, 0, 1))
            each.addcmul_(parts.normal.around, whole.unsqueeze(1))
            if not flat:
                return each
            return torch.stack([flat.get(i, v) for i, v in enumerate(each.unbind(1))], dim=1)

        self.of_pieces = of_pieces
        return values


def density_slope(
    x: Tensor, r: Tensor, knots: Tensor, parts: Parts, normal_density: Tensor, log_scale: Tensor
) -> Tensor:
    """Return the slope ``p'`` of the density of ``z + r eps`` at ``x``, over ``exp(log_scale)``.

    ``normal_density`` is the part of ``p`` from normal pieces, over ``exp(log_scale)`` too. Let
    ``f`` be the density of ``z``, ``phi_r`` the density of the noise, and ``j_k`` the jump of ``f``
    at the knot ``k``. Then ``p' = int f'(z) phi_r(x - z) dz + sum_k j_k phi_r(x - k)``. A uniform
    piece has ``f' = 0``, and a normal piece has ``f' = -z f``. The mean of ``z`` given ``z + r eps
    = x`` is ``x / norm^2`` plus a sum over jumps, with ``norm^2 = 1 + r^2``. So normal pieces have
    the slope ``(sum_k j_k phi_r(x - k) - x p) / norm^2``. The result has no graph.
    """
    noise = log_phi((knots - x) / r).sub_(r.log() + log_scale).clamp_(nf.LEAST, -nf.LEAST).exp_()
    slope = torch.addcmul((parts.jumps * noise).sum(dim=0), x, normal_density, value=-1)
    slope.div_((r * r).add_(1.0))
    return slope if parts.steps is None else slope + (parts.steps * noise).sum(dim=0)


def _rows(values: Tensor, rows: list[int]) -> Tensor:
    """Return the rows of ``values`` with the indices ``rows``, without a copy if adjacent."""
    if rows[-1] - rows[0] == len(rows) - 1:
        return values.narrow(0, rows[0], len(rows))
    return torch.stack([values[i] for i in rows])


def _whole_line(c: Tensor, norm: Tensor, ratios: Tensor) -> Tensor:
    """Return ``norm h(-c)``, ``Phi(-c)`` and ``phi(c) / norm``, given `first_tails` of ``|c|``.

    They are ``E``, ``S`` and ``p`` for a standard normal ``z``, divided by ``phi(max(c, 0)) /
    phi(0)``, ``3 x n``.
    """
    up = (-c).clamp_(min=0.0)
    phi = (up * up).mul_(-0.5).clamp_(min=nf.LEAST).exp_().mul_(nf.INV_SQRT_2PI)
    tail, h = ratios * phi
    tail.lerp_(1.0 - tail, nf.less(c, 0.0))
    return torch.stack([h.add_(up).mul_(norm), tail, phi.div_(norm)])


def _beside_normal(
    x: Tensor, r: Tensor | None, alpha: float, log_scale: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return ``E``, ``S`` and ``p`` of a stretched form minus the normal distribution's values.

    Outside an interval ``[-c, c]``, the two densities agree, with the mass ``alpha``. Inside, the
    stretched form has the constant density ``u`` and the normal mass ``1 - alpha``, so the
    difference ``D = u - phi`` has zero mass and zero mean. Therefore its antiderivative ``D_1 = u z
    - erf(z / sqrt(2)) / 2`` and its second antiderivative ``D_2 = u (z^2 + c^2) / 2 + phi(c) -
    phi(z) - z erf(z / sqrt(2)) / 2`` vanish at both ends. Integration by parts gives the
    differences as convolutions of ``D_2``, ``-D_1`` and ``D`` with the density of the noise:

        ``int D(z) r h((z - x) / r) dz = int D_2(z) phi((z - x) / r) / r dz``,

    and likewise for the first two derivatives in ``x``. The integrands have no kink at ``x``, even
    for small noise. One Gauss-Legendre rule covers the part of the interval within reach of the
    noise, with an error of about 1e-11 of the total. In the code, ``tau`` is ``(z - x) / (r
    sqrt(2))`` and ``y`` is ``z / sqrt(2)``.

    Returns:
        The differences, ``3 x n``, and the uniform piece's part of ``p``, ``n``, all divided by
        ``exp(log_scale)``.
    """
    end = float(nf.upper_score(0.5 * alpha))
    flat = (1.0 - alpha) / (2.0 * end) * nf.SQRT_2PI
    y, weights = x / _SQRT_2, None
    if r is None:
        mass = (-log_scale).clamp_(max=-nf.LEAST).exp_().mul_(x.abs() < end).div_(nf.SQRT_2PI)
    else:
        low, high = ((side * end - x).div_(_SQRT_2 * r) for side in (-1.0, 1.0))
        start = torch.maximum(low, -high).clamp_(min=0.0)
        reach = (start * start).add_(0.5 * _CUT).sqrt_()
        low, high = torch.clamp(low, -reach, reach), torch.clamp(high, -reach, reach)
        length = high - low
        nodes, weights = nf.unit_legendre(_NODES, x.dtype, x.device)
        tau = torch.addcmul(low, nodes.unsqueeze(-1), length)
        mass = torch.addcmul(-log_scale, tau, tau, value=-1).clamp_(nf.LEAST, -nf.LEAST).exp_()
        y = torch.addcmul(y, tau, r)

    bell, side = (y * y).neg_().exp_(), torch.erf(y)
    once = torch.add(side, y, alpha=-2.0 / _SQRT_PI * flat)  # -2 D_1
    half = math.exp(-0.5 * end * end) + 0.5 * flat * end * end
    twice = torch.addcmul(half - bell, y, side.add_(once), value=-0.5 * _SQRT_PI)
    change = torch.stack([twice, once, flat - bell], dim=-2).mul_(mass.unsqueeze(-2))
    if weights is not None:
        length.mul_(1.0 / (_SQRT_2 * math.pi))
        change = (weights @ change.flatten(1)).view(3, -1).mul_(length)
        mass = (weights @ mass).mul_(length)
    change[1].mul_(0.5 * nf.SQRT_2PI)
    return change, mass.mul_(flat)


def _flats(x: Tensor, r: Tensor, low: Tensor, high: Tensor, log_scale: Tensor) -> Tensor:
    """Return the integrals of ``r h(t)``, ``Phi(t)`` and ``phi(t) / r`` over uniform pieces.

    With ``t = (z - x) / r``, the integrals are over ``z`` from ``low`` to ``high``, and ``r`` is
    the noise's standard deviation. The result, with shape ``3 x num_uniform x n``, is divided by
    ``exp(log_scale)``. Without noise the integrals have closed forms. The correction for noise
    decays as ``z`` moves away from ``x``, so a short quadrature rule on each side of ``x``
    suffices.
    """
    at = torch.minimum(torch.maximum(x, low), high)
    start = (at - x).abs_().div_(r)
    square = start * start
    reach = (square + _CUT).sqrt_().add_(start).reciprocal_().mul_(_CUT)
    length = torch.minimum(torch.stack([at - low, high - at]).div_(r), reach)
    nodes, weights, side = _rule(x.dtype, x.device)
    y = nodes * length
    unit = square.mul_(-0.5).sub_(log_scale).clamp_(nf.LEAST, -nf.LEAST).exp_()
    unit = length.mul_(unit).mul_(r * nf.INV_SQRT_2PI)
    mass = torch.addcmul(y * start, y, y, value=0.5).neg_().exp_().mul_(unit).mul_(weights)
    mills, ramp = nf.first_tails(y.add_(start))
    values = torch.stack([mass * ramp, mass * mills.mul_(side), mass]).sum(dim=(-4, -3))
    values[0].mul_(r)
    values[2].div_(r)
    above, root = high - at, (-log_scale).clamp_(max=-nf.LEAST).exp_()
    sure = torch.stack([above * (at + high).mul_(0.5).sub_(x), above])
    values[:2].addcmul_(sure, root)
    return values


@nf.cached_constant
def _rule(dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes and weights, ``order x 1 x 1 x 1``, and signs: 1 below and -1 above ``x``."""
    nodes, weights = nf.graded_rule(_ORDER, dtype, device)
    side = torch.tensor([1.0, -1.0], dtype=dtype, device=device).view(2, 1, 1)
    return nodes[:, 0].clone().view(-1, 1, 1, 1), weights.view(-1, 1, 1, 1), side


class _Integral(Function):
    """`log_excess` or `log_survival`, without noise or for a covered form."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        noise: Tensor | None,
        scale: Tensor,
        knots: Tensor,
        masses: Tensor,
        form: PiecewiseForm,
        parts: Parts,
        which: int,
    ) -> Tensor:
        unit, held = scale, None
        if noise is not None:
            unit, held = held_ratio(scale, noise)
        at = x / unit
        values = Values(at, held, Pieces(knots, masses, form), parts)
        total = values.totals[which]
        log_total = total.clamp(min=nf.TINY).log_().add_(values.log_scale)
        # If no mass is above x, all derivatives are 0, which dividing by infinity gives.
        nothing = total <= 0.0
        total = total.masked_fill(nothing, math.inf)
        by_x = (values.totals[1] if which == EXCESS else values.density) / total
        rows, by_scale = [-by_x], at * by_x
        if noise is not None and held is not None:
            ratio, rate = noise / unit, values.density
            if which == SURVIVAL:
                rest = values.normal_density, values.log_scale
                rate = -density_slope(at, held, knots, parts, *rest)
            rows.append(ratio * rate / total)
            by_scale.addcmul_(ratio, rows[1], value=-1)
        rows.append(by_scale.add_(1.0) if which == EXCESS else by_scale)
        saved: list[Tensor | None] = [None] * 4
        if any(ctx.needs_input_grad[3:5]):
            log_sum = log_total.masked_fill(nothing, math.inf)
            saved = [at, held, log_sum, values.of_pieces()[which] / total]
        slopes = torch.stack(rows).div_(unit)
        ctx.save_for_backward(x, noise, scale, knots, masses, slopes, *saved)
        ctx.parts, ctx.form, ctx.which = parts, form, which
        return log_total + unit.log() if which == EXCESS else log_total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, noise, scale, knots, masses, slopes, at, held, log_sum, means = ctx.saved_tensors
        needed = ctx.needs_input_grad[:5]
        if torch.is_grad_enabled():
            inputs = x, noise, scale, knots, masses
            # The slopes have no graph, so second derivatives use differentiable operations. Second
            # derivatives with respect to `x` and `noise` have an error of about 1e-15 * scale /
            # noise, since terms of size scale / noise cancel.
            value = _by_pieces(x, noise, scale, Pieces(knots, masses, ctx.form), ctx.which)
            wanted = [v for v, need in zip(inputs, needed, strict=True) if need]
            found = torch.autograd.grad(value, wanted, grad, create_graph=True, allow_unused=True)
            by_input = iter(found)
            return (*(next(by_input) if need else None for need in needed), None, None, None)
        by_x, *by_noise, by_scale = grad * slopes
        by_knots = by_masses = None
        if means is not None:
            parts, with_mean = ctx.parts, masses * means
            jumps = parts.jumps if parts.steps is None else parts.jumps + parts.steps
            by_mean = _jumps(with_mean * parts.at_low, with_mean * parts.at_high, ctx.form)
            by_knots = by_mean - jumps * _at_knots(at, held, knots, log_sum, ctx.which)
            by_knots = (grad * by_knots).sum_to_size(knots.shape) if needed[3] else None
            by_masses = (grad * means).sum_to_size(masses.shape) if needed[4] else None
        by_noise = by_noise[0] if by_noise else None
        return by_x, by_noise, by_scale, by_knots, by_masses, None, None, None


def _at_knots(x: Tensor, r: Tensor | None, knots: Tensor, log_total: Tensor, which: int) -> Tensor:
    """Return ``E`` or ``S`` of a unit mass at each knot, divided by ``exp(log_total)``."""
    if r is not None:
        t = (knots - x) / r
        log_value = nf.log_h(t) + r.log() if which == EXCESS else log_ndtr(t)
        return (log_value - log_total).clamp_(nf.LEAST, -nf.LEAST).exp_()
    value = (knots - x).clamp(min=0.0) if which == EXCESS else (x < knots).to(x.dtype)
    return value * (-log_total).clamp(max=-nf.LEAST).exp_()
