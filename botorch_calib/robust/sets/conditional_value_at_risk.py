"""The ambiguity set whose worst case is the mean over the worst share of contexts."""

from __future__ import annotations

from numbers import Real

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.sets.base import AmbiguitySet


class ConditionalValueAtRisk(AmbiguitySet):
    """The mean over the worst ``alpha`` share of the contexts.

    This mean is the worst case over the distributions ``p <= w / alpha``, where ``w`` are the
    weights of the centre. With ``alpha = 1`` it is the expectation. BoTorch's risk measure
    ``CVaR(a)`` averages over the worst share ``1 - a``, so it equals ``ConditionalValueAtRisk(1 -
    a)``, up to the contribution of one sample.

    Args:
        alpha: The share of the contexts, as a probability in (0, 1].

    Example:
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, ConditionalValueAtRisk(0.1), contexts)
    """

    _keeps_support = True

    def __init__(self, alpha: float) -> None:
        if not (isinstance(alpha, Real) and 0.0 < alpha <= 1.0):
            raise InputDataError(f"`alpha` must lie in (0, 1], got {alpha!r}.")
        self.alpha: float = float(alpha)

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        order = u.argsort(dim=-1, stable=True)
        mass = contexts.weights[order]
        before = mass.cumsum(dim=-1) - mass
        # The atoms with the smallest values, up to a total mass of alpha.
        worst = torch.minimum((self.alpha - before).clamp(min=0.0), mass)
        worst = worst / worst.sum(dim=-1, keepdim=True)
        return torch.empty_like(worst).scatter_(-1, order, worst)
