"""The ball in Kullback-Leibler divergence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_calib._root_finding import bracketed_newton
from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.sets.base import Ball

# Below exp(-_FLOOR) the mass of an atom is 0 in float64.
_FLOOR = 800.0
# Where |t| is below this, r log r - r + 1 with r = exp(t) is summed as a power series in t.
_SMALL = 0.1
_TOLERANCE, _MAX_STEPS = 1e-13, 200


class KLBall(Ball):
    """Distributions ``p`` with ``sum_i p_i log(p_i / w_i) <= radius``, zero where ``w`` is.

    The worst-case distribution is exponentially tilted, ``p_i = w_i exp(-s u_i)`` up to a factor,
    with ``s`` at which the radius is met: the root of an increasing function of ``log s``, found by
    Newton's method inside a bracket. If the radius is at least ``-log W``, with ``W`` the weight of
    the atoms of the smallest value, it is the centre restricted to these.

    Args:
        radius: Bound of the divergence, in nats: a number of at least 0, a tensor with one element,
            or a schedule (see `Ball`).

    Raises:
        InputDataError: If ``radius`` is negative, infinite or NaN.
    """

    _keeps_support = True

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        weights = contexts.weights
        if self.radius == 0:
            return weights.expand_as(u)
        least = u <= 0
        worst = weights * least
        mass = worst.sum(dim=-1, keepdim=True)
        worst = worst / mass
        inner = -mass.squeeze(-1).log() > self.radius
        if bool(inner.any()):
            worst[inner] = self._tilted(u[inner], weights)
        return worst

    def _tilted(self, u: Tensor, weights: Tensor) -> Tensor:
        """Worst cases where all mass on the smallest value lies outside of the ball."""
        target = math.log(self.radius)

        def function(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            tilted, size, scaled = tilt(u[rows], weights, x.exp())
            mean = (tilted * scaled).sum(dim=-1, keepdim=True)
            # d divergence / d log s = s^2 Var u under the tilted distribution.
            slope = (tilted * (scaled - mean).square()).sum(dim=-1)
            size = size.clamp(min=torch.finfo(size.dtype).tiny)
            return size.log() - target, slope / size

        # The divergence is at most s^2 / 8 (Hoeffding), and the variance is its curvature at 0.
        low = torch.full_like(u[:, 0], 0.5 * math.log(8 * self.radius))
        gap = u.masked_fill(u <= 0, math.inf).amin(dim=-1)
        high = torch.maximum((_FLOOR / gap).log(), low)
        variance = u.square() @ weights - (u @ weights).square()
        guess = 0.5 * (2 * self.radius / variance.clamp(min=1e-300)).log()
        root = bracketed_newton(function, low, high, guess, _MAX_STEPS, _TOLERANCE)
        worst, size, _ = tilt(u, weights, root.exp())
        # Convexity: a step back to the centre takes what rounding has left outside of the ball.
        share = (self.radius / size.clamp(min=1e-300)).clamp(max=1.0).unsqueeze(-1)
        return torch.lerp(weights.expand_as(worst), worst, share)


def tilt(u: Tensor, weights: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``w exp(-s u)`` as a distribution, its divergence from ``w``, and ``s u`` cut at 800.

    Args:
        u: Values of at least 0, ``b x M``, with a smallest one of 0 in each row.
        weights: Positive, ``M``.
        s: Tilts, ``b``.
    """
    scaled = (s.unsqueeze(-1) * u).clamp(max=_FLOOR)
    shrinkage = torch.expm1(-scaled) @ weights
    # log(1 + shrinkage) loses its digits where little is left of the total, which is then summed
    # itself.
    total = torch.where(shrinkage < -0.5, (-scaled).exp() @ weights, 1.0)
    log_total = torch.where(shrinkage < -0.5, total.log(), shrinkage.log1p()).unsqueeze(-1)
    log_ratio = -scaled - log_total
    ratio = log_ratio.exp()
    tilted = weights * ratio
    # Termwise r log r - r + 1 >= 0, so that small divergences do not drown in rounding.
    direct = ratio * log_ratio - torch.expm1(log_ratio)
    t = log_ratio.clamp(-_SMALL, _SMALL)
    series = torch.zeros_like(t)
    for k in range(12, 1, -1):
        series = series * t + (k - 1) / math.factorial(k)
    terms = torch.where(log_ratio.abs() < _SMALL, series * t.square(), direct)
    return tilted / tilted.sum(dim=-1, keepdim=True), terms @ weights, scaled
