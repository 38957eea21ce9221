r"""AdaHedge: exponential weights whose learning rate needs no tuning.

With ``L_k`` the losses of ``K`` experts so far and ``Delta`` the accumulated gap between the loss
of the weighted average and the mix loss, the weights are ``w_k ~ exp(-gamma L_k)``,
``gamma = ln K / Delta``; while ``Delta`` is 0 they are shared by the leaders.

.. [deRooij2014]
    S. de Rooij, T. van Erven, P. Grunwald and W. Koolen. Follow the leader if you can, hedge
    if you must. JMLR, 2014.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Gaps below this count as none; the rate stays finite.
_LEAST_GAP = 1e-12


def adahedge_weights(losses: Tensor, gap: Tensor) -> Tensor:
    """Weights ``K`` after accumulated losses ``K`` and the accumulated mixability gap."""
    return torch.softmax(-_rate(losses, gap) * (losses - losses.amin()), dim=-1)


def adahedge(rounds: Tensor, losses: Tensor, gap: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Run through ``n`` rounds.

    Args:
        rounds: Losses ``n x K`` of the experts in each round.
        losses: Their accumulated losses before, ``K``.
        gap: The accumulated mixability gap before.

    Returns:
        The weights ``n x K`` before each round, and the losses and the gap after the last.
    """
    rounds = rounds.to(losses)
    weights = []
    for loss in rounds.unbind():
        rate = _rate(losses, gap)
        w = adahedge_weights(losses, gap)
        # The mix loss -log(sum_k w_k exp(-rate loss_k)) / rate, with the least loss taken out. In
        # logarithms, since a leader's weight may be 1 and that of the next one underflow.
        least = loss.amin()
        log_w = torch.log_softmax(-rate * (losses - losses.amin()), dim=-1)
        mix = least - torch.logsumexp(log_w - rate * (loss - least), dim=-1) / rate
        weights.append(w)
        gap = gap + (w @ loss - mix).clamp(min=0.0)
        losses = losses + loss
    stacked = torch.stack(weights) if weights else rounds
    return stacked, losses, gap


def _rate(losses: Tensor, gap: Tensor) -> Tensor:
    return math.log(max(losses.shape[-1], 2)) / gap.clamp(min=_LEAST_GAP)
