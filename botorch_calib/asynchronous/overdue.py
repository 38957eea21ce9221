"""Queries that take longer than any before: until they bring a value, they count as failed."""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from contextlib import suppress
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from botorch_calib.exceptions import TrialStateError
from botorch_calib.ledger import FeedbackLedger, Trial, TrialStatus


def overdue(ledger: FeedbackLedger, now: float) -> list[int]:
    r"""Ids of pending trials that more later trials have overtaken than ever before.

    One trial overtakes another if it was submitted later and has its value no later. Of ``W``
    evaluations of similar length at a time, one is overtaken by fewer than ``W`` others; one that
    hangs is overtaken by all that the other workers finish. It is overdue if it has been overtaken
    by more than ``max(W, M)`` trials, where ``W`` is the most trials that were pending at once
    since it was submitted, and ``M`` the most that have overtaken a trial with a value. As trials
    are counted instead of time, the rule is the same on both clocks of the ledger, and neither
    pauses nor batches of queries matter to it, in whatever order their values come. Values that
    were known upon submission, as those that `FeedbackLedger.add` imports, overtake nothing.

    Where lengths vary widely some trials set a record and bring a value nevertheless: of 120 with
    exponential or log-normal lengths, 2 to 4 with four workers and 6 to 12 with twenty.

    Args:
        ledger: The queries so far.
        now: Time as of which it is read.
    """
    if not len(ledger.pending(now)):
        return []
    trials = [
        trial
        for trial in ledger.trials_at(now)
        if trial.status is TrialStatus.PENDING
        or (trial.status is TrialStatus.OBSERVED and _took_time(trial))
    ]
    trials.sort(key=lambda trial: trial.submitted_at)  # times may be stated out of order
    # A value that has not arrived has the time infinity.
    times = np.array([math.inf if t.observed_at is None else t.observed_at for t in trials])
    arrived = np.isfinite(times)
    if not arrived.any():
        return []
    submitted = np.array([trial.submitted_at for trial in trials])
    known = np.searchsorted(np.sort(times), submitted, side="right")
    at_once = np.arange(1, len(trials) + 1) - known  # upon each submission
    widest = np.maximum.accumulate(at_once[::-1])[::-1]
    overtaken = arrived[::-1].cumsum()[::-1]
    late = ~arrived & (overtaken > np.maximum(widest, _most_overtaken(times)))
    return [trials[place].id for place in np.flatnonzero(late)]


def _took_time(trial: Trial) -> bool:
    return trial.observed_at is not None and trial.observed_at > trial.submitted_at


def _most_overtaken(times: NDArray[np.float64]) -> int:
    """The most that have overtaken one with a value; times of arrival in order of submission."""
    known: list[int] = []  # places of what has arrived, in order
    most = 0
    places = sorted(np.flatnonzero(np.isfinite(times)).tolist(), key=lambda place: times[place])
    for _, group in groupby(places, key=lambda place: times[place]):
        together = list(group)
        for place in together:
            insort(known, place)
        most = max(most, *(len(known) - bisect_right(known, place) for place in together))
    return most


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
