"""One trial: `Trial`, as users see it, and `Entry`, as the ledger stores and changes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from enum import StrEnum

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib.exceptions import TrialStateError

# Tells the time of an event now, given that of an earlier event of the same trial.
Clock = Callable[[float], float]


class TrialStatus(StrEnum):
    """State of a trial; a member compares equal to its name in lower case."""

    PENDING = "pending"
    OBSERVED = "observed"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True)
class EarlierValue:
    """A value of a trial that `FeedbackLedger.amend` has replaced.

    Attributes:
        y: The value that stood before.
        yvar: The variance of its noise, or None.
        replaced_at: Time from which the next value stands, on the ledger's clock.
    """

    y: float
    yvar: float | None
    replaced_at: float


@dataclass(frozen=True, eq=False)
class Trial:
    """A query and its result so far, as known at one time.

    Attributes:
        id: The trial's number: 0, 1, ... in order of submission.
        x: The query, a vector of length ``d`` in double precision.
        y: The value, or None if none has arrived. That of an expired trial came too late.
        submitted_at: Time of submission, on the ledger's clock.
        observed_at: Time of arrival of ``y``, or None.
        status: Pending, observed, expired or failed.
        note: Why the trial failed, or empty.
        yvar: The variance of the noise of ``y``, or None if it is not known.
        earlier: The values before ``y``, the oldest first.
    """

    id: int
    x: Tensor
    y: float | None
    submitted_at: float
    observed_at: float | None
    status: TrialStatus
    note: str
    yvar: float | None = None
    earlier: tuple[EarlierValue, ...] = ()

    def _scalars(self) -> tuple[object, ...]:
        return tuple(getattr(self, item.name) for item in fields(self) if item.name != "x")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trial):
            return NotImplemented
        return self._scalars() == other._scalars() and torch.equal(self.x, other.x)

    def __hash__(self) -> int:
        return hash(self._scalars())


# The numbers of an `Entry` beside its query, in order.
NUMBERS = ("submitted_at", "y", "observed_at", "abandoned_at", "failed_at", "yvar")


@dataclass(frozen=True)
class Entry:
    """The stored form of one trial. Times of events that have not happened are None.

    ``x`` holds the query as consecutive little-endian doubles.
    """

    id: int
    x: bytes
    submitted_at: float
    y: float | None = None
    observed_at: float | None = None
    abandoned_at: float | None = None
    failed_at: float | None = None
    yvar: float | None = None
    note: str = ""
    earlier: tuple[EarlierValue, ...] = ()

    def observed(self, y: float, yvar: float | None, time: float | None, clock: Clock) -> Entry:
        """This trial with its value, which arrived at ``time`` (default: now)."""
        self._refuse_if_closed("observed")
        at = self._checked_time(time, clock)
        return replace(self, y=y, yvar=yvar, observed_at=at)

    def amended(self, y: float, yvar: float | None, time: float | None, clock: Clock) -> Entry:
        """This trial with another value from ``time`` on (default: now)."""
        if self.y is None or self.observed_at is None:
            state = "has failed" if self.failed_at is not None else "has none yet"
            raise TrialStateError(
                f"Trial {self.id} has no value that could be amended: it {state}."
            )
        last = self.earlier[-1].replaced_at if self.earlier else self.observed_at
        at = self._checked_time(time, clock, last, "the last value")
        yvar = self.yvar if yvar is None else yvar
        return replace(
            self, y=y, yvar=yvar, earlier=(*self.earlier, EarlierValue(self.y, self.yvar, at))
        )

    def failed(self, reason: str, time: float | None, clock: Clock) -> Entry:
        """This trial marked as failed at ``time`` (default: now)."""
        self._refuse_if_closed("marked as failed")
        return replace(self, note=reason, failed_at=self._checked_time(time, clock))

    def abandoned(self, time: float | None, clock: Clock) -> Entry:
        """This trial, expired from ``time`` on (default: now)."""
        self._refuse_if_closed("abandoned")
        if self.abandoned_at is not None:
            raise TrialStateError(f"Trial {self.id} has been abandoned already.")
        return replace(self, abandoned_at=self._checked_time(time, clock))

    def _refuse_if_closed(self, change: str) -> None:
        if self.y is not None:
            hint = ": `amend` replaces it" if change == "observed" else ""
            raise TrialStateError(
                f"Trial {self.id} has a value already{hint or f': it cannot be {change}'}."
            )
        if self.failed_at is not None:
            raise TrialStateError(f"Trial {self.id} has failed: it cannot be {change}.")

    def _checked_time(
        self,
        time: float | None,
        clock: Clock,
        earliest: float | None = None,
        event: str = "the submission",
    ) -> float:
        earliest = self.submitted_at if earliest is None else earliest
        if time is None:
            # The submission may have been given a time that has not come yet.
            return clock(earliest)
        if time < earliest:
            raise InputDataError(
                f"`time` {time!r} lies before {event} of trial {self.id} at {earliest!r}."
            )
        return time
