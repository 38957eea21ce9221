"""The ball in chi-squared divergence."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.sets.base import Ball


class ChiSquaredBall(Ball):
    """Distributions ``p`` with ``sum_i (p_i - w_i)^2 / w_i <= radius``.

    ``w`` are the weights of the centre. Atoms with ``w_i = 0`` have ``p_i = 0``. The worst-case
    distribution is ``p_i = w_i max(0, tau - u_i)``, up to a factor, for the values ``u_i`` of the
    function at the atoms. The threshold ``tau`` is found from the sorted values. Some authors
    define the divergence with a factor of 1/2.

    Args:
        radius: Bound on the divergence itself, not on its square root (see `Ball`).

    Example:
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, ChiSquaredBall(0.5), contexts)
    """

    _keeps_support = True

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        if self.radius == 0:
            return contexts.weights.expand_as(u)
        u, order = u.sort(dim=-1, stable=True)
        weights = contexts.weights[order]
        worst = self._sorted_worst(u, weights)
        # Rounding may put the result slightly outside of the ball: move it towards the centre.
        size = ((worst - weights).square() / weights).sum(dim=-1, keepdim=True)
        worst = weights + (worst - weights) * (self.radius / size).sqrt().clamp(max=1.0)
        return torch.empty_like(worst).scatter_(-1, order, worst)

    def _sorted_worst(self, u: Tensor, weights: Tensor) -> Tensor:
        steps, mass = u.diff(dim=-1, prepend=u[:, :1]), weights.cumsum(dim=-1)
        # First and second moment of ``(u_k - u)_+``, for each ``k``, as sums of nonnegative terms.
        # Differences of moments of ``u`` would lose the contribution of the smallest value, which
        # matters even with a tiny weight.
        growth = pad(mass[:, :-1], (1, 0)) * steps
        slack = growth.cumsum(dim=-1)
        square = ((2 * pad(slack[:, :-1], (1, 0)) + growth) * steps).cumsum(dim=-1)
        # At the threshold tau = u_k, the divergence plus 1 is square / slack^2. The divergence
        # decreases in k, from infinity. So the atoms up to the last k at which the divergence
        # exceeds the radius keep mass.
        active = (slack <= 0) | (square > (1 + self.radius) * slack.square())
        last = active.long().cumprod(dim=-1).sum(dim=-1, keepdim=True).sub_(1)
        last.clamp_(min=0)  # no atom is active if values are NaN
        mass, slack, threshold = (v.gather(-1, last) for v in (mass, slack, u))
        weights = torch.where(torch.arange(u.shape[-1], device=u.device) <= last, weights, 0.0)
        # Deviations from the mean over the atoms that keep mass. p = w (1/mass - slope deviation)
        # has the divergence 1/mass + slope^2 mass variance - 1. Setting it to the radius gives the
        # slope.
        deviation = u - threshold + slack / mass
        variance = (weights * deviation.square()).sum(dim=-1, keepdim=True) / mass
        excess = (1 + self.radius - 1 / mass).clamp(min=0.0)
        slope = torch.where(variance > 0, (excess / (mass * variance)).sqrt(), 0.0)
        worst = (weights * (1 / mass - slope * deviation)).clamp(min=0.0)
        return worst / worst.sum(dim=-1, keepdim=True)
