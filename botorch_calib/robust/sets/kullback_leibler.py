"""The ball in Kullback-Leibler divergence."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_calib._roots import bracketed_root
from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.sets.base import Ball

# Upper limit of the exponents ``s u``. As exp(-800) is 0 in float64, the limit changes no mass.
_FLOOR = 800.0
# Lower limit of divergences in denominators
_LEAST = 1e-300
# For |t| below this, r log r - r + 1 with r = exp(t) is computed by a power series in t, as the
# terms of the formula cancel; for larger |t| it is computed by the formula.
_SMALL = 0.1
# Limit on the number of Newton steps. Only the hardest instances need nearly as many steps.
_STEPS = 25


class KLBall(Ball):
    """Distributions ``p`` with ``sum_i p_i log(p_i / w_i) <= radius``.

    ``w`` are the weights of the centre. Atoms with ``w_i = 0`` have ``p_i = 0``. The worst-case
    distribution is exponentially tilted: ``p_i = w_i exp(-s u_i)``, up to a factor, for the values
    ``u_i`` of the function at the atoms. Newton's method finds the ``s`` at which the
    divergence equals the radius, without synchronizing with the device. Let ``W`` be the total
    weight of the atoms with the smallest value. If the radius is at least ``-log W``, the
    worst-case distribution is the centre restricted to these atoms.

    Args:
        radius: Bound on the divergence, in nats (see `Ball`).

    Example:
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, KLBall(0.1), contexts)
    """

    _keeps_support = True

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        weights = contexts.weights
        if self.radius == 0:
            return weights.expand_as(u)
        worst = weights * (u <= 0)
        mass = worst.sum(dim=-1, keepdim=True)
        tilted, size, _ = tilt(u, weights, self._search(u, weights).exp())
        # Rounding may put the result outside of the ball: move it towards the centre. The
        # divergence is convex, so it decreases at least in proportion to the distance.
        share = (self.radius / size.clamp(min=_LEAST)).clamp(max=1.0).unsqueeze(-1)
        tilted = torch.lerp(weights.expand_as(tilted), tilted, share)
        return torch.where(-mass.log() > self.radius, tilted, worst / mass)

    def _search(self, u: Tensor, weights: Tensor) -> Tensor:
        """Return ``log s``, of shape ``b``, at which the divergence equals the radius."""
        # The divergence is at most s^2 / 8 (Hoeffding), which gives the lower limit. For small s
        # the divergence is about s^2 / 2 times the variance of u, which gives the start. At the
        # upper limit only atoms with the smallest value have mass.
        low = torch.full_like(u[:, 0], 0.5 * math.log(8 * self.radius))
        gap = u.masked_fill(u <= 0, math.inf).amin(dim=-1)
        high = torch.maximum((_FLOOR / gap).log(), low)

        def log_excess(log_s: Tensor) -> tuple[Tensor, Tensor, float]:
            worst, size, scaled = tilt(u, weights, log_s.exp())
            size = size.clamp(min=_LEAST)
            # d divergence / d log s = s^2 Var u under the tilted distribution.
            mean = torch.linalg.vecdot(worst, scaled).unsqueeze(-1)
            slope = torch.linalg.vecdot(worst, (scaled - mean).square())
            return (size / self.radius).log(), slope / size, 0.0

        mean = (u @ weights).unsqueeze(-1)
        start = 0.5 * (2 * self.radius / ((u - mean).square() @ weights)).log()
        start = torch.minimum(torch.maximum(start, low), high)
        return bracketed_root(log_excess, start, low, high, _STEPS)


def tilt(u: Tensor, weights: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The distribution ``w exp(-s u)``, its divergence from ``w``, and ``s u`` clamped at 800.

    The shapes are ``b x M``, ``b`` and ``b x M``. ``w`` are the ``weights``, and the distribution
    is normalised. The smallest value in each row of ``u``, ``b x M``, must be 0. The tilts ``s``
    have shape ``b``.
    """
    scaled = (s.unsqueeze(-1) * u).clamp(max=_FLOOR)
    shrinkage = torch.expm1(-scaled) @ weights
    # If the total is small, log(1 + shrinkage) loses digits, and the total is summed directly.
    total = torch.where(shrinkage < -0.5, (-scaled).exp() @ weights, 1.0)
    log_total = torch.where(shrinkage < -0.5, total.log(), shrinkage.log1p()).unsqueeze(-1)
    log_ratio = -scaled - log_total
    ratio = log_ratio.exp()
    tilted = weights * ratio
    # The divergence is the sum of w (r log r - r + 1), with the ratio r of the tilted weight to w.
    # No term is negative, so small divergences do not suffer from cancellation.
    direct = ratio * log_ratio - torch.expm1(log_ratio)
    t = log_ratio.clamp(-_SMALL, _SMALL)
    series = torch.zeros_like(t)
    for k in range(12, 1, -1):
        series = series * t + (k - 1) / math.factorial(k)
    terms = torch.where(log_ratio.abs() < _SMALL, series * t.square(), direct)
    return tilted / tilted.sum(dim=-1, keepdim=True), terms @ weights, scaled
