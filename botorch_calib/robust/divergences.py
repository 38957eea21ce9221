"""Balls in total variation, chi-squared and Kullback-Leibler divergence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_calib.numerics import bracketed_newton
from botorch_calib.robust.base import Ball
from botorch_calib.robust.contexts import ContextDistribution

# Below exp(-_FLOOR) the mass of an atom is 0 in float64.
_FLOOR = 800.0
# Where |t| is below this, r log r - r + 1 with r = exp(t) is summed as a power series in t.
_SMALL = 0.1
_TOLERANCE, _MAX_STEPS = 1e-13, 200


class TotalVariationBall(Ball):
    """Laws ``p`` with ``sum_i |p_i - w_i| <= radius``: twice the total variation distance.

    The worst law takes the mass ``radius / 2`` from the atoms of the largest values and puts it on
    the atom of the smallest one, which may be an atom of weight 0. From radius 2 on all mass is
    there.

    Args:
        radius: Radius in the norm ``|p - w|_1``, of which at most 2 matters, or a schedule of it;
            see `Ball`.

    Raises:
        InputDataError: If ``radius`` is negative, infinite or NaN.
    """

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        order = u.argsort(dim=-1, descending=True, stable=True)
        mass = contexts.weights[order]
        before = mass.cumsum(dim=-1) - mass
        # The last atom gives to itself, which changes nothing.
        moved = torch.minimum((self.radius / 2 - before).clamp(min=0.0), mass)
        law = mass - moved
        law[:, -1] += moved.sum(dim=-1)
        return torch.empty_like(law).scatter_(-1, order, law)


class ChiSquaredBall(Ball):
    """Laws ``p`` with ``sum_i (p_i - w_i)^2 / w_i <= radius``, zero where ``w`` is.

    The worst law is ``p_i = w_i max(0, tau - u_i)`` up to a factor: the threshold ``tau`` is found
    among the sorted values, then the radius is met in closed form. There is no factor of 1/2 in
    the divergence; some authors have one.

    Args:
        radius: Bound of the divergence itself, not of its root, or a schedule of it; see `Ball`.

    Raises:
        InputDataError: If ``radius`` is negative, infinite or NaN.
    """

    _keeps_support = True

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        if self.radius == 0:
            return contexts.weights.expand_as(u)
        u, order = u.sort(dim=-1, stable=True)
        weights = contexts.weights[order]
        law = self._sorted_law(u, weights)
        # Rounding may leave the ball by a hair; the way back to its centre is straight.
        size = ((law - weights).square() / weights).sum(dim=-1, keepdim=True)
        law = weights + (law - weights) * (self.radius / size).sqrt().clamp(max=1.0)
        return torch.empty_like(law).scatter_(-1, order, law)

    def _sorted_law(self, u: Tensor, weights: Tensor) -> Tensor:
        steps, mass = u.diff(dim=-1, prepend=u[:, :1]), weights.cumsum(dim=-1)
        # First and second moment of ``(u_k - u)_+``: sums of what is not negative, since the
        # smallest value may have next to no weight and still matter.
        growth = shifted(mass) * steps
        slack = growth.cumsum(dim=-1)
        square = ((2 * shifted(slack) + growth) * steps).cumsum(dim=-1)
        # Divergence + 1 of the law with threshold tau = u_k: falls as k grows, infinite at min u.
        active = (slack <= 0) | (square > (1 + self.radius) * slack.square())
        last = active.long().cumprod(dim=-1).sum(dim=-1, keepdim=True) - 1
        mass, slack, threshold = (v.gather(-1, last) for v in (mass, slack, u))
        weights = torch.where(torch.arange(u.shape[-1], device=u.device) <= last, weights, 0.0)
        # From the mean of what keeps mass.
        deviation = u - threshold + slack / mass
        variance = (weights * deviation.square()).sum(dim=-1, keepdim=True) / mass
        excess = (1 + self.radius - 1 / mass).clamp(min=0.0)
        slope = torch.where(variance > 0, (excess / (mass * variance)).sqrt(), 0.0)
        law = (weights * (1 / mass - slope * deviation)).clamp(min=0.0)
        return law / law.sum(dim=-1, keepdim=True)


def shifted(sums: Tensor) -> Tensor:
    """Cumulative sums ``b x M`` without the last summand of each."""
    return torch.nn.functional.pad(sums[:, :-1], (1, 0))


class KLBall(Ball):
    """Laws ``p`` with ``sum_i p_i log(p_i / w_i) <= radius``, zero where ``w`` is.

    The worst law is exponentially tilted, ``p_i = w_i exp(-s u_i)`` up to a factor, with ``s`` at
    which the radius is met: the root of an increasing function of ``log s``, found by Newton's
    method inside a bracket. If the radius is at least ``-log W``, with ``W`` the weight of the
    atoms of the smallest value, the worst law is the centre restricted to these.

    Args:
        radius: Bound of the divergence, in nats, or a schedule of it; see `Ball`.

    Raises:
        InputDataError: If ``radius`` is negative, infinite or NaN.
    """

    _keeps_support = True

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        weights = contexts.weights
        if self.radius == 0:
            return weights.expand_as(u)
        least = u <= 0
        law = weights * least
        mass = law.sum(dim=-1, keepdim=True)
        law = law / mass
        inner = -mass.squeeze(-1).log() > self.radius
        if bool(inner.any()):
            law[inner] = self._tilted(u[inner], weights)
        return law

    def _tilted(self, u: Tensor, weights: Tensor) -> Tensor:
        """Laws where the radius is less than the divergence of the law of the smallest value."""
        target = math.log(self.radius)

        def function(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            law, size, scaled = tilt(u[rows], weights, x.exp())
            mean = (law * scaled).sum(dim=-1, keepdim=True)
            slope = (law * (scaled - mean).square()).sum(dim=-1)
            size = size.clamp(min=torch.finfo(size.dtype).tiny)
            return size.log() - target, slope / size

        # The divergence is at most s^2 / 8 (Hoeffding), and the variance is its curvature at 0.
        low = torch.full_like(u[:, 0], 0.5 * math.log(8 * self.radius))
        gap = u.masked_fill(u <= 0, math.inf).amin(dim=-1)
        high = torch.maximum((_FLOOR / gap).log(), low)
        variance = u.square() @ weights - (u @ weights).square()
        guess = 0.5 * (2 * self.radius / variance.clamp(min=1e-300)).log()
        root = bracketed_newton(function, low, high, guess, _MAX_STEPS, _TOLERANCE)
        law, size, _ = tilt(u, weights, root.exp())
        # Convexity: a step back to the centre takes what rounding has left outside of the ball.
        share = (self.radius / size.clamp(min=1e-300)).clamp(max=1.0).unsqueeze(-1)
        return torch.lerp(weights.expand_as(law), law, share)


def tilt(u: Tensor, weights: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The law ``w exp(-s u)`` normalised, its divergence from ``w``, and ``s u`` cut at 800.

    Args:
        u: Values of at least 0, ``b x M``, with a smallest one of 0 in each row.
        weights: Positive, ``M``.
        s: Tilts, ``b``.
    """
    scaled = (s.unsqueeze(-1) * u).clamp(max=_FLOOR)
    shrinkage = torch.expm1(-scaled) @ weights
    # Where little is left of the total, it is summed itself: what is left decides.
    total = torch.where(shrinkage < -0.5, (-scaled).exp() @ weights, 1.0)
    log_total = torch.where(shrinkage < -0.5, total.log(), shrinkage.log1p()).unsqueeze(-1)
    log_ratio = -scaled - log_total
    ratio = log_ratio.exp()
    law = weights * ratio
    # Termwise r log r - r + 1 >= 0, so that small divergences do not drown in rounding.
    direct = ratio * log_ratio - torch.expm1(log_ratio)
    t = log_ratio.clamp(-_SMALL, _SMALL)
    series = torch.zeros_like(t)
    for k in range(12, 1, -1):
        series = series * t + (k - 1) / math.factorial(k)
    terms = torch.where(log_ratio.abs() < _SMALL, series * t.square(), direct)
    return law / law.sum(dim=-1, keepdim=True), terms @ weights, scaled
