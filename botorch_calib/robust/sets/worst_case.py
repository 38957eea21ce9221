"""The set of all distributions on the atoms."""

from __future__ import annotations

import torch
from torch import Tensor

from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.sets.base import AmbiguitySet


class WorstCase(AmbiguitySet):
    """All distributions on the atoms: the worst case is the smallest value over all atoms.

    If the atoms fill a box, such as the contexts within one standard deviation of their mean, the
    worst case is the robust objective of StableOpt (Bogunovic et al. 2018).

    Example:
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, WorstCase(), contexts)
    """

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        return torch.zeros_like(u).scatter_(-1, u.argmin(dim=-1, keepdim=True), 1.0)
