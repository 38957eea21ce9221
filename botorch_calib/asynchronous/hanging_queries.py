"""Queries that hang: pending ones overtaken by more later ones than ever before."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
from numpy.typing import ArrayLike, NDArray

from botorch_calib.exceptions import TrialStateError
from botorch_calib.ledger import FeedbackLedger, TrialStatus


def hanging_places(submitted: ArrayLike, arrived: ArrayLike) -> list[int]:
    """Trials without a value that more later trials have overtaken than any trial before.

    One trial overtakes another if it was submitted later, by its place and by its time, and has
    its value no later. If ``W`` evaluations of similar length run at a time, fewer than ``W``
    overtake one of them; one that hangs is overtaken by all that other workers finish. A trial is
    hanging if it has been overtaken by more than ``max(W, M)`` trials, where ``W`` is the most
    trials that were without a value at once since it was submitted, and ``M`` the most that have
    overtaken a trial with a value. Only the order of times matters: neither pauses nor batches do.

    If lengths vary widely, some trials set a record and bring a value nevertheless: of 120 with
    exponential or log-normal lengths, 2 to 4 with four workers and 6 to 12 with twenty.

    Times of submission are in order; those of arrival are infinite where no value has come.
    """
    starts, ends = np.asarray(submitted, dtype=float), np.asarray(arrived, dtype=float)
    has_value = np.isfinite(ends)

    def overtaken(place: int) -> int:
        later = slice(place + 1, None)
        overtakes = (starts[later] >= starts[place]) & (ends[later] <= ends[place])
        return int(np.count_nonzero(overtakes & has_value[later]))

    at_once = _how_many_until(starts, starts) - _how_many_until(starts, ends)
    widest = np.maximum.accumulate(at_once[::-1])[::-1]
    pending, known = (np.flatnonzero(which).tolist() for which in (~has_value, has_value))
    late = {place: count for place in pending if (count := overtaken(place)) > widest[place]}
    most = max(map(overtaken, known), default=0) if late else 0
    return [place for place, count in late.items() if count > most]


def _how_many_until(moments: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.intp]:
    """How many of the times have come at each of the moments, that moment included."""
    return np.searchsorted(np.sort(times), moments, side="right")


def hanging(ledger: FeedbackLedger, now: float) -> list[int]:
    """Ids of the pending trials of a ledger at ``now`` that are hanging (`hanging_places`).

    Trials that failed or expired do not count, nor do values that were known upon submission.
    """
    if not len(ledger.pending(now)):
        return []
    trials = [
        trial
        for trial in ledger.trials_at(now)
        if trial.status is TrialStatus.PENDING
        or (trial.status is TrialStatus.OBSERVED and trial.observed_at != trial.submitted_at)
    ]
    places = hanging_places(
        [trial.submitted_at for trial in trials],
        # A value that is recorded ahead of its time has not arrived.
        [math.inf if trial.observed_at is None else trial.observed_at for trial in trials],
    )
    return [trials[place].id for place in places]


def with_hanging_failed(ledger: FeedbackLedger, now: float) -> FeedbackLedger:
    """The ledger or, if trials are hanging, a copy in which they have failed.

    Those whose value is recorded ahead of its time, as in simulations, stay pending.
    """
    late = hanging(ledger, now)
    if not late:
        return ledger
    copy = ledger.snapshot()
    for trial_id in late:
        with suppress(TrialStateError):
            copy.fail(trial_id, "hangs", now)
    return copy
