r"""Quantiles of a piecewise distribution smoothed by Gaussian noise, in a fixed number of steps.

The ``tail`` quantile is the point ``x`` beyond which ``z + r eps`` has the probability ``tail``. In
units of normal scores, ``Phi^-1(P(z + r eps <= x)) = zeta`` with ``zeta = -Phi^-1(tail)``, the
left-hand side is nearly linear in ``x``, and linear where ``z`` is normal. The number of steps
depends on the form of the distribution alone, so nothing is read back from the device; it is enough
for the tightest pieces and the widest gaps (`num_steps`). On a CPU, where reading costs nothing,
the search ends with the step that takes all points there.

*Guess.* ``z + r eps = T(u) + r eps`` with independent standard normal ``u`` and ``eps``, and ``T``
the transport. If ``T`` were linear, the point of ``T(u) + r eps >= x`` nearest to the origin would
have the distance ``zeta`` (the first-order reliability method). The guess is the largest value of
``T(u) + r eps`` at this distance, ``max_w T(zeta sin w) + r zeta cos w``. It is exact for normal
``z``, for ``r -> 0`` and for ``r -> infinity``, and was within half a score of the root in all
tests. A distribution that many batches share has a better one, from a `QuantileTable`.

*Steps.* The score ``g(x)`` has ``g' = p / phi(g)``, so with ``l = log p`` the logarithm of its
slope has the derivatives ``A = l' + g g'`` and ``B = l'' + g'^2 + g g' A``, all of which come with
the value. Take that logarithm for a parabola. Then ``g`` changes by ``gap`` over the step ``t`` of

    ``int_0^t exp(A s + B s^2 / 2) ds = gap / g' =: d``.

For ``B < 0``, ``sigma = (-B)^(-1/2)`` and ``a = -|A| sigma`` this is a normal integral,
``t = sign(A) sigma (Phi^-1(Phi(a) + sign(A) d phi(a) / sigma) - a)``: it goes through a
gap between narrow pieces in one step, where the slope falls like that of the noise. Otherwise, and
for small ``d``, it is expanded to third order in ``d``,
``t = d (1 + A d / 2) / (1 + A d + (B + A^2) d^2 / 6)`` (Householder's method). A step out of the
bracket is replaced by Newton's, and that by a bisection; so is a step after one that has not halved
the gap: beside a piece narrower than the noise, where the score climbs like a cliff between slopes,
the steps would leap to and fro.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

import torch
from botorch.utils.probability.utils import log_phi, ndtr
from torch import Tensor
from torch.autograd import Function

from botorch_calib.distributions._bivariate_tails import off_zero
from botorch_calib.distributions._kept_constants import kept_constant
from botorch_calib.distributions._normal_functions import INV_SQRT_2PI, TINY
from botorch_calib.distributions._piece_integrals import log_integrals_by_pieces
from botorch_calib.distributions._smoothed_integrals import (
    Parts,
    Values,
    density_slopes,
    gradients,
    log_densities,
    log_survival,
    norm_of,
    parts_of,
)
from botorch_calib.distributions.form import PiecewiseForm

STEPS_FROM_TABLE = 1  # where the guess is that of a `QuantileTable`, 1e-6 scores off
_NUM_ANGLES = 5  # angles at which to look for the guess, with both ends
_SMALL = 0.1  # d times the slope's relative change, squared, below which the expansion serves
# The `a` below which the normal integral is an exponential to all digits that matter
_LOWEST = -30.0
# Shares of a normal integral that a step keeps to, since its parabola is an approximation
_LEAST_SHARE, _LARGEST = 1e-9, 1 - 1e-9
_DEEPEST = -700.0  # logarithm below which probabilities are not told apart: 37 scores
_ROUNDING = 1e-11  # of scores
# Distance in scores below which a point stays: rounding alone could take Newton's step out of the
# bracket there, or beside a cliff pass for a step that failed.
_CLOSE = 1e-8
# A step over less than this distance ends the search if it differs from Newton's by no more than
# this share: the slope hardly changes over it, and no third-order step misses by `_CLOSE` then.
_LAST, _SAME = 1e-6, 1e-6
_WIDE = 1e-6  # steps over such a distance where the score hardly changes


def upper_score(tail: float | Tensor) -> Any:
    """``zeta = -Phi^-1(tail)``."""
    return -torch.special.ndtri(tail) if isinstance(tail, Tensor) else -NormalDist().inv_cdf(tail)


def normal_points(tail: float | Tensor, device: torch.device) -> Tensor:
    """Normal scores of ``z`` and ``eps`` at which to look for the quantile, ``2 x 7 x 1``.

    For ``n`` different tails ``2 x 7 x n``. The last two of the 7 are a bracket: with
    ``u = -Phi^-1(tail / 2)``,
    ``P(z + r eps > T(u) + r u) <= P(z > T(u)) + P(eps > u) = tail``, and likewise
    ``P(z + r eps < T(-u) - r u) <= tail <= 1 - tail``. The others are the candidates of the guess.
    """
    by_zeta, by_u = _directions(device)
    return by_zeta * upper_score(tail) + by_u * upper_score(tail / 2)


@kept_constant
def _directions(device: torch.device) -> tuple[Tensor, Tensor]:
    """Weights of ``zeta`` and of ``u`` in the points, ``2 x 7 x 1`` each."""
    angles = [0.5 * math.pi * i / (_NUM_ANGLES - 1) for i in range(_NUM_ANGLES)]
    by_zeta = [[*map(f, angles), 0.0, 0.0] for f in (math.sin, math.cos)]
    by_u = [[0.0] * _NUM_ANGLES + [-1.0, 1.0]] * 2
    both = torch.tensor([by_zeta, by_u], dtype=torch.float64, device=device)
    return both[0].unsqueeze(-1), both[1].unsqueeze(-1)


def num_steps(form: PiecewiseForm) -> int:
    """Number of steps to an error of 1e-8 scores, whatever the numbers, as found by tests.

    Beside pieces that hold next to no mass the score climbs like a cliff, which at a level close to
    their mass takes many bisections. At the edge of a single narrow piece it takes two or three,
    and one more if that is narrower than 0.002 scores: the error is up to 3e-4 then. Where most
    normal pieces are at most 1e-6 wide beside wide ones it is up to 1e-4.
    """
    if form.rare_tails:
        return 25
    if form.stretched:
        return 3
    if form.only_tails:
        return 6
    return 5 if form.is_normal_throughout else 8


class SmoothedQuantile(Function):
    """The point beyond which ``z + r eps`` has the probability ``tail``, differentiable.

    With ``S(x, theta) = tail`` the quantile moves by ``dx/dtheta = (dS/dtheta) / p``: derivatives
    of every order, since the backward pass is made of differentiable functions of the quantile.

    Args:
        r: ``n`` positive ratios of the noise to the scale of the normal pieces, float64.
        knots: ``num_finite_knots x n``, or ``x 1``.
        masses: ``num_pieces x n``, or ``x 1``.
        points: Candidates for the guess and the two ends of a bracket, ``7 x n``, or a guess alone,
            ``1 x n``; without gradient.
        tail: In (0, 1/2], or ``n`` such.
        form: Form of the distribution, which is not a single normal piece without bounds.
        parts: `parts_of` the distribution, if known.

    Returns:
        ``n`` quantiles.
    """

    @staticmethod
    def forward(
        ctx: Any,
        r: Tensor,
        knots: Tensor,
        masses: Tensor,
        points: Tensor,
        tail: float | Tensor,
        form: PiecewiseForm,
        parts: Parts | None = None,
    ) -> Tensor:
        survival = SurvivalCurve(r, knots, masses, form, parts)
        x, log_p, log_slope = _solve(survival, points, tail)
        ctx.save_for_backward(x, r, knots, masses, log_p, log_slope)
        ctx.form, ctx.parts = form, survival.parts
        ctx.log_tail = tail.log() if isinstance(tail, Tensor) else math.log(tail)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, log_p, log_slope = ctx.saved_tensors
        needed, with_graph = ctx.needs_input_grad[:3], torch.is_grad_enabled()
        if needed == (True, False, False) and not with_graph:
            # By the heat equation dS/dr = -r p'
            return (-grad * inputs[1] * log_slope, *[None] * 6)
        with torch.enable_grad():
            # Views, so that the quantile's own dependence on the rest is not counted
            x, *rest = (v.view_as(v) if with_graph else v.detach() for v in inputs)
            if not with_graph:
                rest = [v.requires_grad_() for v in rest]
            r, knots, masses = rest
            log_s = log_survival(x, r, knots, masses, ctx.form, ctx.parts)
            if with_graph:
                each = log_densities(x, r, knots, ctx.form) + masses.clamp(min=TINY).log()
                log_p = each.logsumexp(dim=0)
            weight = grad * ((log_s if with_graph else ctx.log_tail) - log_p).exp()
            found = gradients(log_s, rest, needed, weight, with_graph)
        return (*found, None, None, None, None)


class SurvivalCurve:
    """``log P(z + r eps > x)``, the log density and its derivatives, as functions of ``x`` alone.

    Nothing here has a graph. Arguments are those of `SmoothedQuantile`.
    """

    def __init__(
        self,
        r: Tensor,
        knots: Tensor,
        masses: Tensor,
        form: PiecewiseForm,
        parts: Parts | None = None,
    ) -> None:
        self.r, self.masses, self.form = r, masses, form
        self.knots = knots.contiguous() if form.around_zero else off_zero(knots)
        self.parts = parts_of(self.knots, masses, form) if parts is None else parts
        self._norm = norm_of(r)

    def __call__(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The logarithms, ``p' / p`` and the second derivative of ``log p``, each ``n``."""
        arguments = (x, self.r, self.knots)
        if self.form.covered:
            values = Values(*arguments, self.masses, self.parts, self.form, self._norm)
            log_scale, normal = values.log_scale, values.normal_density()
            tail, density = values.totals[1], values.density
        else:
            _, log_s = log_integrals_by_pieces(*arguments, self.masses, self.form)
            log_p = log_densities(*arguments, self.form) + self.masses.clamp(min=TINY).log()
            log_scale = torch.maximum(log_s, log_p.amax(dim=0))
            pieces = (log_p - log_scale).exp()
            tail, density = (log_s - log_scale).exp(), pieces.sum(dim=0)
            normal = (pieces * self.form.is_normal(x)).sum(dim=0)
        slope, curve = density_slopes(*arguments, self.parts, normal, log_scale)
        density = density.clamp(min=TINY)
        slope, curve = slope.div_(density), curve.div_(density)
        curve = torch.addcmul(curve, slope, slope, value=-1)
        tail = tail.clamp(min=TINY)
        return tail.log().add_(log_scale), density.log().add_(log_scale), slope, curve


@torch.no_grad()
def _solve(
    survival: SurvivalCurve, points: Tensor, tail: float | Tensor, more: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """The quantile, and the log density and its derivative there, after ``more`` extra steps."""
    zeta, form = upper_score(tail), survival.form
    if len(points) == 1:
        x, num, bracketed = points[0], STEPS_FROM_TABLE, False
        low = high = x
    else:
        x, low, high = points[:-2].amax(dim=0), points[-2], points[-1]
        # For a stretched form the guess is so good, and the slope so smooth, that no step can fail.
        num, bracketed = num_steps(form), form.rare_tails or not form.stretched
    size_before: Tensor | float = math.inf
    for _ in range(num + more):
        last = x
        log_tail, log_p, slope, curve = survival(last)
        g = -torch.special.ndtri(log_tail.clamp_(min=_DEEPEST).exp_().clamp_(max=_LARGEST))
        rate = torch.exp(log_p - log_phi(g))
        gap = zeta - g
        size, below = gap.abs(), gap > 0
        # Where the density is next to nothing, rounding of the score would be a wide step.
        d = (gap / rate).masked_fill_(size < _ROUNDING, 0.0)
        if not bracketed:  # nor where the score is right and the step still wide
            d.masked_fill_((size < _CLOSE).logical_and_(d.abs() > _WIDE), 0.0)
        a1 = torch.addcmul(slope, g, rate)
        a2 = torch.addcmul(curve, rate, torch.addcmul(rate, g, a1))
        x = last + _expansion(d, a1, a2)
        if not bracketed:
            continue
        low, high = torch.where(below, last, low), torch.where(below, high, last)
        x = torch.where(_has_gap(d, a1, a2), last + _over_gap(d, a1, a2), x)
        plain = last + d
        rest = torch.where(size < _CLOSE, last, 0.5 * (low + high))
        for other in (plain, rest):
            x = torch.where((x >= low) & (x <= high), x, other)
        x, size_before = torch.where(size > 0.5 * size_before, rest, x), size
        if all_there(size, x - plain, d):
            break
    step = x - last
    return x, log_p.addcmul_(slope, step), torch.addcmul(slope, curve, step)


def all_there(size: Tensor, change: Tensor, d: Tensor) -> bool:
    """Whether steps from scores ``size`` off, Newton's ``d`` plus ``change``, end the search.

    False on a device, where the number of steps is fixed.
    """
    if size.device.type != "cpu":
        return False
    gap, is_newton = size.numpy(), abs(change.numpy()) <= _SAME * abs(d.numpy())
    return bool(((gap < _CLOSE) | ((gap < _LAST) & is_newton)).all())


def _expansion(d: Tensor, a1: Tensor, a2: Tensor) -> Tensor:
    """The step to third order in ``d``; ``a1`` and ``a2`` are ``A`` and ``B`` of the docstring."""
    change = a1 * d
    curved = torch.addcmul(a2, a1, a1).mul_(d * d)
    return d * torch.add(change, 2.0) / curved.mul_(1 / 3).add_(change, alpha=2.0).add_(2.0)


def _has_gap(d: Tensor, a1: Tensor, a2: Tensor) -> Tensor:
    """Whether the slope's logarithm is concave and changes much over the step."""
    changes = torch.addcmul((a1 * d).square_(), a2 * d, d, value=-1) > _SMALL
    return changes.logical_and_(a2 < 0).logical_and_(a1.square() < -(_LOWEST**2) * a2)


def _over_gap(d: Tensor, a1: Tensor, a2: Tensor) -> Tensor:
    """The step by the normal integral."""
    sign = a1.sign()
    sigma = a2.neg().clamp_(min=1e-200).rsqrt_()
    a = (a1.abs() * sigma).neg_().clamp_(min=_LOWEST)
    below = ndtr(a)
    density = (a * a).mul_(-0.5).exp_().mul_(INV_SQRT_2PI)
    share = torch.addcmul(below, d * sign, density.div_(sigma))
    share = torch.maximum(share, below * _LEAST_SHARE).clamp_(max=_LARGEST)
    return torch.special.ndtri(share).sub_(a).mul_(sigma).mul_(sign)


class QuantileTable:
    """The ``tail`` quantile of one distribution as a function of the ratio ``r``, for guesses.

    Tabulated over ``log r``, with the derivative ``dx / d log r = -r^2 p' / p``, and interpolated
    by cubic polynomials. Below the range of the table the quantile stays, above it grows like
    ``zeta r``. ``transport`` holds the quantiles of ``z`` at `normal_points`, ``7``.
    """

    _LOW, _STEP, _NUM = -18.4, 0.05, 784  # log r from 1e-8 to 1e9
    _MORE_STEPS = 3

    @torch.no_grad()
    def __init__(
        self, knots: Tensor, masses: Tensor, form: PiecewiseForm, transport: Tensor, tail: float
    ) -> None:
        self._zeta = upper_score(tail)
        log_r = torch.arange(self._NUM, dtype=torch.float64, device=knots.device)
        r = log_r.mul(self._STEP).add(self._LOW).exp()
        eps = normal_points(tail, knots.device)[1]
        points = torch.addcmul(transport.unsqueeze(-1), eps, r)
        survival = SurvivalCurve(r, knots.unsqueeze(-1), masses.unsqueeze(-1), form)
        x, _, slope = _solve(survival, points, tail, more=self._MORE_STEPS)
        rate = -self._STEP * r * r * slope
        rise = x.diff()
        # Coefficients of the cubic polynomial on each cell
        self._coefficients = torch.stack(
            [
                x[:-1],
                rate[:-1],
                3 * rise - 2 * rate[:-1] - rate[1:],
                rate[:-1] + rate[1:] - 2 * rise,
            ]
        )

    @torch.no_grad()
    def __call__(self, r: Tensor) -> Tensor:
        """Guesses at ratios ``n``."""
        at = r.log().sub_(self._LOW).div_(self._STEP).clamp_(0.0, self._NUM - 1.0)
        cell = at.long().clamp_(0, self._NUM - 2)  # as an integer, NaN is out of the table
        s = at - cell
        c0, c1, c2, c3 = self._coefficients.index_select(1, cell)
        value = torch.addcmul(c2, c3, s)
        value = torch.addcmul(c1, value, s)
        beyond = (r - math.exp(self._LOW + self._STEP * (self._NUM - 1))).clamp_(min=0.0)
        return torch.addcmul(c0, value, s).add_(beyond, alpha=self._zeta)
