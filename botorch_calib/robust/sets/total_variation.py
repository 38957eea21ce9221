"""The ball in total variation."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.sets.base import Ball


class TotalVariationBall(Ball):
    """Distributions ``p`` with ``sum_i |p_i - w_i| <= radius``: twice the total variation distance.

    ``w`` are the weights of the centre. The worst-case distribution takes the mass ``radius / 2``
    from the atoms with the largest values and puts it on the atom with the smallest value, even if
    this atom has weight 0.

    Args:
        radius: Radius in the norm ``|p - w|_1`` (see `Ball`). If it is 2 or more, the set contains
            all distributions on the atoms.

    Example:
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, TotalVariationBall(0.2), contexts)
    """

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        order = u.argsort(dim=-1, descending=True, stable=True)
        mass = contexts.weights[order]
        before = mass.cumsum(dim=-1) - mass
        # The norm counts moved mass twice, so at most ``radius / 2`` moves. The last atom has the
        # smallest value, so mass taken from it returns to it.
        moved = torch.minimum((self.radius / 2 - before).clamp(min=0.0), mass)
        worst = mass - moved
        worst[:, -1] += moved.sum(dim=-1)
        return torch.empty_like(worst).scatter_(-1, order, worst)
