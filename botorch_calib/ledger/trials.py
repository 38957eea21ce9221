"""One trial: what users see of it, what the ledger stores of it, and how it may change."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from enum import StrEnum

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib.exceptions import TrialStateError


class TrialStatus(StrEnum):
    """State of a trial; a member compares equal to its name in lower case."""

    PENDING = "pending"
    OBSERVED = "observed"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True, eq=False)
class Trial:
    """A query and its result so far, as known at one time.

    Attributes:
        id: The trial's number: 0, 1, ... in order of submission.
        x: The query, a vector of length ``d`` in double precision.
        y: The value, or None if none has arrived. An expired trial has a value if it arrived too
            late for a ledger that discards late values.
        submitted_at: Time of submission, on the ledger's clock.
        observed_at: Time of arrival of ``y``, or None.
        status: Pending, observed, expired or failed.
        note: Why the trial failed, or empty.
    """

    id: int
    x: Tensor
    y: float | None
    submitted_at: float
    observed_at: float | None
    status: TrialStatus
    note: str

    def _scalars(self) -> tuple[object, ...]:
        return tuple(getattr(self, item.name) for item in fields(self) if item.name != "x")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Trial):
            return NotImplemented
        return self._scalars() == other._scalars() and torch.equal(self.x, other.x)

    def __hash__(self) -> int:
        return hash(self._scalars())


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
    note: str = ""

    def observed(self, y: float, time: float | None, now: float) -> Entry:
        """This trial with its value, which arrived at ``time`` (default: ``now``)."""
        self._refuse_if_closed("observed")
        return replace(self, y=y, observed_at=self._checked_time(time, now))

    def failed(self, reason: str, time: float | None, now: float) -> Entry:
        """This trial marked as failed at ``time`` (default: ``now``)."""
        self._refuse_if_closed("marked as failed")
        return replace(self, note=reason, failed_at=self._checked_time(time, now))

    def abandoned(self, time: float | None, now: float) -> Entry:
        """This trial, expired from ``time`` on (default: ``now``)."""
        self._refuse_if_closed("abandoned")
        if self.abandoned_at is not None:
            raise TrialStateError(f"Trial {self.id} has been abandoned already.")
        return replace(self, abandoned_at=self._checked_time(time, now))

    def _refuse_if_closed(self, change: str) -> None:
        if self.y is not None:
            raise TrialStateError(f"Trial {self.id} has a value already: it cannot be {change}.")
        if self.failed_at is not None:
            raise TrialStateError(f"Trial {self.id} has failed: it cannot be {change}.")

    def _checked_time(self, time: float | None, now: float) -> float:
        if time is None:
            # If the system clock was set back, `now` may lie before the submission.
            return max(now, self.submitted_at)
        if time < self.submitted_at:
            raise InputDataError(
                f"`time` {time!r} lies before the submission of trial {self.id} "
                f"at {self.submitted_at!r}."
            )
        return time
