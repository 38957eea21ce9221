"""Queries that take longer than any before: until they bring a value, they count as failed."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np

from botorch_calib.exceptions import TrialStateError
from botorch_calib.ledger import FeedbackLedger, TrialStatus


def overdue(ledger: FeedbackLedger, now: float) -> list[int]:
    r"""Ids of pending trials that more later trials have overtaken than ever before.

    One trial overtakes another if it was submitted later and has its value earlier. Of ``W``
    evaluations of similar length at a time, one is overtaken by fewer than ``W`` others; one that
    hangs is overtaken by all that the other workers finish. It is overdue if it has been overtaken
    by more than ``max(W, M)`` trials, where ``W`` is the most trials that were pending at once
    since it was submitted, and ``M`` the most that have overtaken a trial with a value. As trials
    are counted instead of time, the rule is the same on both clocks of the ledger, and neither
    pauses nor batches of queries matter to it, in whatever order their values come.

    Where lengths vary widely some trials set a record and bring a value nevertheless. Of ``n``
    exchangeable trials about ``log n`` do.

    Args:
        ledger: The queries so far.
        now: Time as of which it is read.
    """
    kinds = (TrialStatus.PENDING, TrialStatus.OBSERVED)
    trials = [trial for trial in ledger.trials_at(now) if trial.status in kinds]
    ids = np.array([trial.id for trial in trials])
    # A value that has not arrived has the time infinity.
    times = np.array([math.inf if t.observed_at is None else t.observed_at for t in trials])
    arrived = np.isfinite(times)
    if arrived.all() or not arrived.any():
        return []
    submitted = np.array([trial.submitted_at for trial in trials])
    known = np.searchsorted(np.sort(times), submitted, side="right")
    at_once = np.arange(1, len(trials) + 1) - known  # upon each submission
    widest = np.maximum.accumulate(at_once[::-1])[::-1]
    order = ids[arrived][np.argsort(times[arrived], kind="stable")]
    later = order[:, None] < order  # row: a trial with a value; column: one submitted later
    record = int(np.tril(later).sum(axis=1).max())
    overtaken = len(order) - np.searchsorted(np.sort(order), ids)
    late = ~arrived & (overtaken > np.maximum(widest, record))
    return [int(trial_id) for trial_id in ids[late]]


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
