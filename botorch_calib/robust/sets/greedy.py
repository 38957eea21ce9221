"""Sets whose worst case moves mass from atom to atom, in the order of the values."""

from __future__ import annotations

from numbers import Real

import torch
from botorch.exceptions import InputDataError
from torch import Tensor

from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.sets.base import AmbiguitySet, Ball


class ConditionalValueAtRisk(AmbiguitySet):
    """The mean over the worst ``alpha`` share of the contexts.

    This mean is the worst case over the distributions ``p <= w / alpha``. With ``alpha = 1`` it is
    the expectation. BoTorch's risk measure ``CVaR(a)`` averages over the worst share ``1 - a``, so
    it equals ``ConditionalValueAtRisk(1 - a)``, up to the contribution of one sample.

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
        worst = first_part(contexts.weights[order], self.alpha)
        worst = worst / worst.sum(dim=-1, keepdim=True)
        return torch.empty_like(worst).scatter_(-1, order, worst)


class TotalVariationBall(Ball):
    """Distributions ``p`` with ``sum_i |p_i - w_i| <= radius``: twice the total variation distance.

    The worst-case distribution takes the mass ``radius / 2`` from the atoms with the largest values
    and puts it on the atom with the smallest value, even if this atom has weight 0.

    Args:
        radius: Radius in the norm ``|p - w|_1`` (see `Ball`). With 2 or more, all mass moves.

    Example:
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, TotalVariationBall(0.2), contexts)
    """

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        order = u.argsort(dim=-1, descending=True, stable=True)
        mass = contexts.weights[order]
        # The norm counts moved mass twice. Mass taken from the last atom returns to it.
        moved = first_part(mass, self.radius / 2)
        worst = mass - moved
        worst[:, -1] += moved.sum(dim=-1)
        return torch.empty_like(worst).scatter_(-1, order, worst)


class WorstCase(AmbiguitySet):
    """All distributions on the atoms: the worst case is the smallest value over all atoms.

    If the atoms fill a box, such as the mean of the contexts plus and minus their standard
    deviation, the worst case is the robust objective of StableOpt (Bogunovic et al. 2018).

    Example:
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, WorstCase(), contexts)
    """

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        return torch.zeros_like(u).scatter_(-1, u.argmin(dim=-1, keepdim=True), 1.0)


def first_part(mass: Tensor, total: float) -> Tensor:
    """The part of ``mass``, ``b x M``, in its first atoms, up to a ``total`` in each row."""
    before = mass.cumsum(dim=-1) - mass
    return torch.minimum((total - before).clamp(min=0.0), mass)
