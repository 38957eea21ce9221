"""Borders of regions that fail: what is near one, and when the search has tried it often enough."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.ledger.trials import are_among
from botorch_calib.robust.contexts import pairwise_distances

# Distance from a failure up to which a query is at its border, in units of the box, times the
# square root of the dimension.
BORDER = 0.1

# So many more queries at borders than elsewhere, with no better value, and the next is elsewhere.
PATIENCE = 5


def are_near(X: Tensor, failures: Tensor) -> Tensor:
    """Which of the points ``n x d`` of the unit cube are at the border of which of ``m``."""
    return pairwise_distances(X, failures) < BORDER * math.sqrt(X.shape[-1])


def borders_are_overdrawn(
    ledger: FeedbackLedger, now: float, strategy: DelayStrategy, bounds: Tensor
) -> bool:
    """Whether borders have had enough queries in vain, so that the next one belongs elsewhere.

    Each query since the best one, pending or not, adds 1 to a count if it failed or was made within
    `BORDER` of an earlier failure; each other one takes 1 off it, down to 0. If queries that are
    made at a count of `PATIENCE` are elsewhere and do not fail, at most ``(PATIENCE + T) / 2`` of
    any ``T`` in a row are at borders, and no more than `PATIENCE` one after the other. Failures
    count once they are known. If failures lie all over the box, there is no place elsewhere.
    """
    best, X = ledger.best(now=now), ledger.queries(now)
    lost = are_among(ledger.statuses(now), strategy.lost_statuses).nonzero()[:, 0]
    since = torch.arange(0 if best is None else best.id + 1, len(X))
    unit = (X - bounds[0]) / (bounds[1] - bounds[0])
    near = are_near(unit[since], unit[lost]) & (lost <= since.unsqueeze(-1))
    count = 0
    for at_border in near.any(dim=-1).tolist():
        count = max(count + (1 if at_border else -1), 0)
    return count >= PATIENCE
