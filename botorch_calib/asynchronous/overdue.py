"""Queries that take longer than any before: until they bring a value, they count as failed."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from botorch_calib.exceptions import TrialStateError
from botorch_calib.ledger import FeedbackLedger, TrialStatus


def overdue(ledger: FeedbackLedger, now: float) -> list[int]:
    r"""Ids of pending trials that more later trials have overtaken than ever before.

    One trial overtakes another if it was submitted later and has its value earlier. Of ``W``
    evaluations of similar length at a time, one is overtaken by fewer than ``W`` others; one that
    hangs is overtaken by all that the other workers finish. It is overdue if it has been overtaken
    by more than ``max(W, M)`` trials, where ``W`` is the number of pending trials and ``M`` the
    most that have overtaken a trial with a value. As trials are counted instead of time, the rule
    is the same on both clocks of the ledger, and neither pauses nor batches of queries matter to
    it.

    Where lengths vary widely some trials set a record and bring a value nevertheless. Of ``n``
    exchangeable trials about ``log n`` do.

    Args:
        ledger: The queries so far.
        now: Time as of which it is read.
    """
    trials = ledger.trials_at(now)
    pending = [trial.id for trial in trials if trial.status is TrialStatus.PENDING]
    arrivals = [
        (trial.observed_at, trial.id)
        for trial in trials
        if trial.status is TrialStatus.OBSERVED and trial.observed_at is not None
    ]
    if not pending or not arrivals:
        return []
    ids = np.array([trial_id for _, trial_id in sorted(arrivals)])
    overtakes = ids[:, None] < ids  # row: a trial with a value; column: one submitted later
    most = max(len(pending), int(np.tril(overtakes).sum(axis=1).max()))
    return [trial_id for trial_id in pending if (ids > trial_id).sum() > most]


def with_overdue_failed(ledger: FeedbackLedger, now: float) -> FeedbackLedger:
    """The ledger or, if trials are overdue, a copy in which they have failed.

    Those whose value is recorded ahead of its time, as in simulations, stay pending.
    """
    late = overdue(ledger, now)
    if not late:
        return ledger
    copy = ledger.snapshot()
    for trial_id in late:
        with suppress(TrialStateError):
            copy.fail(trial_id, "overdue", now)
    return copy
