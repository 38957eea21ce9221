r"""`stated_gains`: whether gains exceed the gains that acquisition functions have stated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_finite, check_numbers, check_tensor

_STAKES = (0.1, 0.25, 0.5, 0.75)


class StatedGains(NamedTuple):
    """The result of `stated_gains`.

    Attributes:
        ratios: Multiples of the stated gain.
        shares: Share of the rounds in which the gain reached each multiple.
        allowed: Largest expected share, ``1 / ratio``.
        evidence: Evidence against the stated gains. If they are at least the expected gains, it
            reaches 1 / delta with probability delta at most.
    """

    ratios: tuple[float, ...]
    shares: tuple[float, ...]
    allowed: tuple[float, ...]
    evidence: float


def stated_gains(
    stated: Tensor, gains: Tensor, ratios: Sequence[float] = (1.0, 2.0, 5.0, 10.0)
) -> StatedGains:
    r"""Compare the gains of outcomes with stated gains, such as expected improvement.

    OCBO's Theorem 1: if probabilities are calibrated, a gain ``g >= 0`` (``max(y - best_f, 0)``)
    reaches ``r`` times its stated mean ``s`` in at most a share ``1 / r`` of the rounds, up to the
    calibration error. *Proof* for right predictions: given the past, ``P(g >= r s) <= E[g] / (r s)
    = 1 / r`` (Markov's inequality). The evidence is the largest value so far of the mean over
    stakes ``a`` of ``prod (1 + a (g / s - 1))``. If ``E[g] <= s``, this is a nonnegative
    supermartingale that starts at 1, so it ever reaches ``1 / delta`` with probability ``delta`` at
    most (Ville's inequality). Gains that are smaller than stated are not detected.

    Args:
        stated: Stated mean gains ``n``, positive, each stated before its outcome.
        gains: Gains ``n`` of the outcomes, at least 0. They include noise if ``stated`` is about
            observations.
        ratios: Multiples of the stated gain to count, positive.

    Example:
        >>> gains = stated_gains(torch.tensor([0.1, 0.1]), torch.tensor([0.3, 0.0]), ratios=(2.0,))
        >>> gains.shares, gains.allowed
        ((0.5,), (0.5,))
    """
    for name, values in (("stated", stated), ("gains", gains)):
        check_finite(name, check_tensor(name, values))
    s, g = stated.detach().double().flatten(), gains.detach().double().flatten()
    if len(s) != len(g) or not len(s) or not (s > 0.0).all() or not (g >= 0.0).all():
        raise InputDataError(
            "`stated` must hold positive numbers and `gains` as many of at least 0, got "
            f"{len(s)} and {len(g)}."
        )
    ratios = tuple(check_numbers("ratios", ratios).flatten().tolist())
    if not all(r > 0.0 for r in ratios):
        raise InputDataError(f"`ratios` must be positive, got {ratios}.")
    ratio, stakes = g / s, torch.tensor(_STAKES).to(g)
    wealth = torch.log1p(stakes.unsqueeze(-1) * (ratio - 1.0)).cumsum(dim=-1)
    evidence = (wealth.logsumexp(dim=0).max() - torch.log(stakes.new_tensor(len(stakes)))).exp()
    shares = tuple((ratio >= r).double().mean().item() for r in ratios)
    allowed = tuple(min(1.0, 1.0 / r) for r in ratios)
    return StatedGains(ratios, shares, allowed, max(evidence.item(), 1.0))
