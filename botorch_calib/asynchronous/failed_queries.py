"""Consequences of queries that bring no value, for the model and for where to search."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.asynchronous.failure_model import Feasibility, are_near
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.ledger.trials import are_among
from botorch_calib.models.conditioning import with_observations
from botorch_calib.models.inspection import like, observed_process
from botorch_calib.models.matching_rows import is_any_of

# A point closer to a failed query than this, in units of the box in every coordinate, repeats it.
SAME = 1e-6

# A pending query counts as so many times as likely to fail as is predicted.
RISK = 4.0

# Pending queries with a prediction of at least this are left out.
SAFE = 0.999


# So many more queries at borders than elsewhere, with no better value, and the next is elsewhere.
PATIENCE = 5


def queries_in(ledger: FeedbackLedger, now: float, *wanted: TrialStatus) -> Tensor:
    """The queries ``n x d`` of trials in some states, by id."""
    return ledger.queries(now)[are_among(ledger.statuses(now), wanted)]


def have_failed(points: Tensor, failed: Tensor, bounds: Tensor) -> Tensor:
    """Which of the points, ``batch_shape x d``, are the same as a failed query, ``n x d``."""
    scale = bounds[1] - bounds[0]
    return is_any_of(points / scale, failed / scale, SAME)


def choices_left(choices: Tensor, failed: Tensor) -> Tensor:
    """The choices that are none of the failed queries, exactly as these were asked."""
    left = choices[~is_any_of(choices, failed)]
    if not len(left):
        raise InputDataError(
            "All `choices` have failed: add others, or start with a new ledger if their "
            "evaluation can succeed now."
        )
    return left


def poor_value(ledger: FeedbackLedger, now: float) -> float:
    """The mean of the values less their standard deviation, with their sign if minimized."""
    _, Y = ledger.to_observations(now)
    return float((Y if ledger.maximize else -Y).mean() - Y.std())


def with_failures_imputed(
    model: Any, ledger: FeedbackLedger, now: float, strategy: DelayStrategy
) -> Any:
    """The model conditioned on poor values at lost queries, or on poorer predictions.

    The worst value observed would bend a smooth model also beside the region that fails, where the
    best point may lie; the mean would draw the search back into it two or three times as often.
    """
    lost = queries_in(ledger, now, *strategy.lost_statuses)
    if not len(lost) or not strategy.imputes_failures:
        return model
    X, sign = like(model, lost), 1.0 if ledger.maximize else -1.0
    poor = poor_value(ledger, now)
    with torch.no_grad():
        values = sign * (sign * observed_process(model).posterior(X).mean).clamp_max(poor)
        return with_observations(model, X, values)


def feasibility_of(
    ledger: FeedbackLedger, now: float, strategy: DelayStrategy, bounds: Tensor
) -> Feasibility | None:
    """Where queries bring values; None if none has failed or failures do not matter.

    A pending query near failures counts as failed in part, by `RISK` times the amount by which its
    prediction falls short of 1. Otherwise all workers would try the same border at once, and with
    ten of them up to nearly twice as many queries fail. In full, failures that have nothing to do
    with the query would drive the search away from the best pending queries.
    """
    statuses = ledger.statuses(now)
    lost = are_among(statuses, strategy.lost_statuses)
    if strategy.failures == "ignore" or not lost.any():
        return None
    has_value = are_among(statuses, (TrialStatus.OBSERVED,))
    is_pending = are_among(statuses, (TrialStatus.PENDING,))
    X, known = ledger.queries(now), lost | has_value
    cost = _evaluations_lost(ledger, now, lost, has_value)
    feasibility = Feasibility(X[known], lost[known], bounds, cost)
    risks = 1.0 - feasibility.predict(X[is_pending])
    at_risk = risks > 1.0 - SAFE
    if not at_risk.any():
        return feasibility
    failed = torch.cat([lost[known].to(risks), (RISK * risks[at_risk]).clamp_max(1.0)])
    X = torch.cat([X[known], X[is_pending][at_risk]])
    return Feasibility(X, failed, bounds, cost)


def _evaluations_lost(ledger: FeedbackLedger, now: float, lost: Tensor, has_value: Tensor) -> float:
    """Evaluations lost by failures: by each one, or more if it took longer than any value."""
    waits = torch.tensor(ledger.waits(now), dtype=torch.double)
    longest = torch.cat([waits[has_value], waits.new_ones(1)]).max()
    return float((waits[lost] / longest).clamp_min(1.0).sum())


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
