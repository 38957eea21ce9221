"""What follows from queries that bring no value, for the model and for where to search."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
from torch import Tensor

from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.asynchronous.feasibility import Feasibility
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.models.conditioning import conditioned_on, given_noise
from botorch_calib.models.inspection import like, observed_process

# A pending query is taken to be so many times as likely to fail as is predicted.
RISK = 4.0

# If it is predicted to succeed by this at least, nothing is assumed of it.
SAFE = 0.999


def queries_in(ledger: FeedbackLedger, now: float, *wanted: TrialStatus) -> Tensor:
    """The queries ``n x d`` of trials in some states, by id."""
    return ledger.queries(now)[_among(ledger.statuses(now), wanted)]


def lost_queries(ledger: FeedbackLedger, now: float, strategy: DelayStrategy) -> Tensor:
    """Queries ``n x d`` that bring no value, those of one state after those of the other."""
    return torch.cat([queries_in(ledger, now, status) for status in _lost_statuses(strategy)])


def imputes_failures(strategy: DelayStrategy) -> bool:
    """Whether failures have values to the model: also if an acquisition function has no units."""
    is_own = callable(strategy.acquisition)
    return strategy.failures == "impute" or (strategy.failures == "avoid" and is_own)


def poor_value(ledger: FeedbackLedger, now: float) -> float:
    """The mean of the values less their standard deviation, with their sign if minimized."""
    _, Y = ledger.to_observations(now)
    return float((Y if ledger.maximize else -Y).mean() - Y.std())


def with_failures_imputed(
    model: Any, ledger: FeedbackLedger, now: float, strategy: DelayStrategy
) -> Any:
    """The model conditioned on poor values at lost queries, or on poorer predictions.

    It is the model itself where nothing is lost, or the strategy does not ask for it.

    The poor value is a compromise. The worst one observed makes a deep hole, which bends a
    smooth model around it, and the best point may lie beside the region that fails; with the
    mean of the values the search is drawn back into the region two or three times as often.
    """
    lost = lost_queries(ledger, now, strategy)
    if not len(lost) or not imputes_failures(strategy):
        return model
    X, sign = like(model, lost), 1.0 if ledger.maximize else -1.0
    poor = poor_value(ledger, now)
    gp = observed_process(model)
    with torch.no_grad():
        values = sign * (sign * gp.posterior(X).mean).clamp_max(poor)
        return conditioned_on(model, X, values, **given_noise(gp, X, values, None))


def feasibility_of(
    ledger: FeedbackLedger,
    now: float,
    strategy: DelayStrategy,
    bounds: Tensor,
) -> Feasibility | None:
    """Where queries bring values; None if none has failed or failures do not matter.

    A pending query near to those that failed is taken to have failed in part, by `RISK` times what
    its prediction falls short of 1, until it brings a value. Otherwise all workers would try the
    same border at once, as nothing is known of the first of them while the others are chosen. With
    ten workers that costs up to nearly twice as many failures and, if the region hangs, as many
    workers for as long as the time-out. It is in part, as failures that have nothing to do with the
    query would otherwise drive the search away from the best queries that are pending.

    Args:
        ledger: The queries so far, in which those that are overdue have failed.
        now: Time as of which it is read.
        strategy: Which of them are lost.
        bounds: The box, ``2 x d``.
    """
    statuses = ledger.statuses(now)
    lost = _among(statuses, _lost_statuses(strategy))
    if strategy.failures == "ignore" or not lost.any():
        return None
    has_value, is_pending = (
        _among(statuses, (status,)) for status in (TrialStatus.OBSERVED, TrialStatus.PENDING)
    )
    X, known = ledger.queries(now), lost | has_value
    cost = _evaluations_lost(ledger, now, lost, has_value)
    feasibility = Feasibility(X[known], lost[known], bounds, cost)
    risks = 1.0 - feasibility.predict(X[is_pending])
    at_risk = risks > 1.0 - SAFE
    if not at_risk.any():
        return feasibility
    failed = torch.cat([lost[known].to(risks), (RISK * risks[at_risk]).clamp_max(1.0)])
    return Feasibility(torch.cat([X[known], X[is_pending][at_risk]]), failed, bounds, cost)


def _evaluations_lost(ledger: FeedbackLedger, now: float, lost: Tensor, has_value: Tensor) -> float:
    """How many evaluations failures have cost: one each or, if it took longer than any, more."""
    waits = torch.tensor(ledger.waits(now), dtype=torch.double)
    longest = torch.cat([waits[has_value], waits.new_ones(1)]).max()
    return float((waits[lost] / longest).clamp_min(1.0).sum())


def _among(statuses: Iterable[TrialStatus], wanted: Collection[TrialStatus]) -> Tensor:
    """Which trials are in one of some states, booleans by id."""
    return torch.tensor([status in wanted for status in statuses], dtype=torch.bool)


def _lost_statuses(strategy: DelayStrategy) -> tuple[TrialStatus, ...]:
    """States of queries that bring no value: failed and, unless they are censored, expired."""
    is_censored = strategy.imputation == "censor"
    return (TrialStatus.FAILED,) if is_censored else (TrialStatus.FAILED, TrialStatus.EXPIRED)
