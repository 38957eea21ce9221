"""`ViewAtTime`: the states and data of trials as known at a given time."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib._validation import check_open_unit
from botorch_calib.distributions.scoring_rules import binomial_interval
from botorch_calib.ledger.contents import Contents
from botorch_calib.ledger.trials import EarlierValue, Entry, Trial, TrialStatus

Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]

NO_VALUE = Entry(-1, b"", 0.0)


class ArrivalProbability(NamedTuple):
    """An estimate of the probability that a value arrives within a wait, with an interval.

    Attributes:
        estimate: The Kaplan-Meier estimate. If no trial has waited for the whole wait, the estimate
            is for the longest wait so far, or NaN if no value has arrived yet.
        lower: Lower end of the confidence interval.
        upper: Upper end of the confidence interval; 1 if no trial has waited for the whole wait
            and some values are missing.

    Example:
        >>> estimate, lower, upper = ledger.arrival_probability(wait=5)
    """

    estimate: float
    lower: float
    upper: float


class ViewAtTime:
    """A ledger's trials as known at time ``now``. A set of trials is a mask, in order of id."""

    def __init__(self, contents: Contents, now: float) -> None:
        self._contents = contents
        self._columns = columns = contents.columns
        self._max_wait = contents.settings.max_wait
        self.now = now
        starts, arrivals = columns["submitted_at"], columns["observed_at"]
        is_past = np.less if contents.settings.clock == "iterations" else np.less_equal
        self.submitted: Mask = is_past(starts, now)
        # NaN is the time of an event that has not happened. Comparisons with NaN are False, so the
        # trial is not in the mask.
        self.failed: Mask = self.submitted & (columns["failed_at"] <= now)
        self.arrived: Mask = self.submitted & (arrivals <= now)
        # Trials whose value has arrived (in time, unless the ledger uses late values). A trial with
        # a value cannot be abandoned. So at equal times the trial was abandoned before its value
        # arrived, and the value is late.
        is_late = (arrivals - starts > self._max_wait) | (arrivals >= columns["abandoned_at"])
        uses_late = contents.settings.late == "use"
        self.usable: Mask = self.arrived if uses_late else self.arrived & ~is_late
        # Trials without a usable value, which eq. 1 of Verma et al. (2022) censors: expired trials
        # and pending trials, whose value may still arrive in time.
        self.incomplete: Mask = self.submitted & ~self.failed & ~self.usable
        recent = ~(now - starts > self._max_wait)
        self.expired: Mask = self.incomplete & (~recent | (columns["abandoned_at"] <= now))
        self.pending: Mask = self.incomplete & ~self.expired
        # Trials submitted within the last ``max_wait``, with or without a value.
        self.window: Mask = self.submitted & ~self.failed & recent

    @property
    def waits(self) -> NDArray[np.intp]:
        """For each trial, the number of trials submitted after it and before it ended.

        For a trial that has not ended, those submitted after it and before ``now`` count.
        """
        columns = self._columns
        starts = columns["submitted_at"]
        # `fmin` ignores NaN, the time of events that have not happened.
        ends = [columns[name] for name in ("observed_at", "failed_at", "abandoned_at")]
        ended = np.fmin.reduce([*ends, starts + self._max_wait, np.full_like(starts, self.now)])
        # Trials submitted exactly at the start or the end of a trial do not count.
        in_order = np.sort(starts)
        before_end = np.searchsorted(in_order, ended, side="left")
        until_start = np.searchsorted(in_order, starts, side="right")
        return np.maximum(before_end - until_start, 0)

    @property
    def delays(self) -> tuple[NDArray[np.float64], Mask]:
        """Return the delays of ``k`` trials, and ``k`` flags: whether each value has arrived.

        If the value has not arrived, the delay is the wait so far, or the wait until the trial was
        abandoned. Failed trials and trials with a delay of 0 are left out.
        """
        starts = self._columns["submitted_at"]
        given_up = np.fmin(self._columns["abandoned_at"], self.now)
        delays = np.where(self.arrived, self._columns["observed_at"], given_up) - starts
        kept = self.submitted & ~self.failed & ~(self.arrived & (delays == 0.0))
        return delays[kept], self.arrived[kept]

    def rows(self, mask: Mask, order: str = "submitted_at") -> Rows:
        """Row numbers of the trials in ``mask``, sorted by the time ``order``, then by id."""
        rows = np.flatnonzero(mask)
        return rows[np.argsort(self._columns[order][rows], kind="stable")]

    def queries(self, rows: Rows) -> Tensor:
        """Queries ``k x d`` of the trials in ``k`` rows."""
        return torch.from_numpy(self._contents.X[rows])

    def values(self, rows: Rows, censor_value: float | None = None) -> Tensor:
        """Values ``k x 1`` of the trials in ``k`` rows.

        Values that are not usable are replaced with ``censor_value`` or, if it is None, with NaN.
        """
        values = np.array([record.y for record in self._records(rows)], dtype=np.float64)
        values[~self.usable[rows]] = math.nan if censor_value is None else censor_value
        return torch.from_numpy(values).unsqueeze(-1)

    def variances(self, rows: Rows) -> Tensor:
        """Noise variances ``k x 1`` of the values in ``k`` rows; NaN if unknown."""
        variances = np.array([record.yvar for record in self._records(rows)], dtype=np.float64)
        return torch.from_numpy(variances).unsqueeze(-1)

    def contexts(self, rows: Rows) -> Tensor:
        """Contexts ``k x d_c`` of the values of ``k`` rows; NaN for values without a context.

        If `amend` has changed the length of contexts, contexts of the old length count as missing.
        """
        unknown = (math.nan,) * next(iter(self._contents.context_dims), 0)
        contexts = (record.context for record in self._records(rows))
        known = [own if own and len(own) == len(unknown) else unknown for own in contexts]
        return torch.tensor(known, dtype=torch.double).view(len(rows), len(unknown))

    def _records(self, rows: Rows) -> list[Entry | EarlierValue]:
        """For each row, the record with the value that was valid at the time of this view."""
        return [self.entry(row).standing(self.now) for row in rows.tolist()]

    def entry(self, row: int) -> Entry:
        """The stored form of the trial in a row, including events after the time of this view."""
        return self._contents.entries[row]

    def trials(self, rows: Rows) -> tuple[Trial, ...]:
        """The trials in the given rows; a trial submitted after ``now`` counts as pending."""
        # Selecting rows copies them, so that pickling a trial does not pickle all queries.
        queries = [torch.from_numpy(x) for x in self._contents.X[rows]]
        trials = []
        for row, x, status in zip(rows.tolist(), queries, self.statuses(rows), strict=True):
            entry, arrived = self.entry(row), bool(self.arrived[row])
            value = entry.standing(self.now) if arrived else NO_VALUE
            trials.append(
                Trial(
                    id=entry.id,
                    x=x,
                    y=value.y,
                    submitted_at=entry.submitted_at,
                    observed_at=entry.observed_at if arrived else None,
                    status=status,
                    note=entry.note if status is TrialStatus.FAILED else "",
                    yvar=value.yvar,
                    earlier=tuple(e for e in entry.earlier if e.replaced_at <= self.now),
                    context=value.context,
                )
            )
        return tuple(trials)

    def statuses(self, rows: Rows) -> list[TrialStatus]:
        """The states of the trials in the given rows, pending if submitted after ``now``."""
        states = (TrialStatus.FAILED, TrialStatus.OBSERVED, TrialStatus.EXPIRED)
        masks = [mask[rows] for mask in (self.failed, self.usable, self.expired)]
        chosen = np.select(masks, range(len(states)), default=len(states))
        return [(*states, TrialStatus.PENDING)[i] for i in chosen.tolist()]


def kaplan_meier(
    waits: NDArray[np.float64], arrived: NDArray[np.bool_], wait: float, confidence: float
) -> ArrivalProbability:
    """Estimate ``P(delay <= wait)`` by the Kaplan-Meier estimator.

    ``waits`` holds the delay of each value that has ``arrived``, else the trial's wait so far. The
    interval is the Clopper-Pearson interval for the number of uncensored trials that would give
    Greenwood's variance (Dorey and Korn 1987). Without censoring it is the exact binomial interval.
    """
    check_open_unit("confidence", confidence)
    in_time = arrived & (waits <= wait)
    num_known = int((in_time | (waits >= wait)).sum())
    if num_known == 0:
        return ArrivalProbability(math.nan, 0.0, 1.0)
    times, arrivals = np.unique(waits[in_time], return_counts=True)
    # A trial without a value is at risk until the end of its wait, as its delay is longer.
    at_risk = len(waits) - np.searchsorted(np.sort(waits), times, side="left")
    late = float(np.prod(1 - arrivals / at_risk))
    num = float(num_known)
    if 0.0 < late < 1.0:
        num = (1 - late) / (late * float(np.sum(arrivals / (at_risk * (at_risk - arrivals)))))
    count, total = torch.tensor([(1 - late) * num, num], dtype=torch.double)
    low, high = binomial_interval(count, total, confidence)
    is_followed = late == 0.0 or bool((waits >= wait).any())
    return ArrivalProbability(1 - late, float(low), float(high) if is_followed else 1.0)
