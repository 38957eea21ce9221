"""What a ledger keeps of each trial, the changes a trial allows, and a ledger's settings."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_count, check_one_of
from botorch_calib.exceptions import TrialStateError
from botorch_calib.ledger.arguments import as_number

CLOCKS = ("iterations", "seconds")
LATE = ("use", "discard")


class TrialStatus(StrEnum):
    """Where a trial stands; it compares equal to its name in lower case."""

    PENDING = "pending"
    OBSERVED = "observed"
    EXPIRED = "expired"
    FAILED = "failed"


@dataclass(frozen=True, eq=False)
class Trial:
    """A query and what has become of it, as known at one time.

    Attributes:
        id: Number by which the ledger knows the trial: 0, 1, ... in order of submission.
        x: The query: a vector of length ``d``, double precision.
        y: The value, or None if none has arrived. An expired trial has one if it arrived too
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
class Settings:
    """The settings of a ledger, checked; see `FeedbackLedger` for their meaning."""

    dim: int
    censor_value: float | None = None
    max_wait: float = math.inf
    late: str = "use"
    clock: str = "iterations"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", check_count("dim", self.dim))
        if self.censor_value is not None:
            censor_value = as_number("censor_value", self.censor_value) + 0.0  # no -0.0
            object.__setattr__(self, "censor_value", censor_value)
        wait = as_number("max_wait", self.max_wait, finite=False) + 0.0
        if wait < 0.0:
            raise InputDataError(f"`max_wait` must be at least 0, got {self.max_wait!r}.")
        object.__setattr__(self, "max_wait", wait)
        for name, choices in (("late", LATE), ("clock", CLOCKS)):
            check_one_of(name, getattr(self, name), choices)

    def check_agrees(self, given: dict[str, Any], path: object) -> None:
        """Raise ``InputDataError`` if any of the ``given`` settings is not this one's."""
        wanted = replace(self, **given)
        for name in given:
            if getattr(wanted, name) != getattr(self, name):
                raise InputDataError(
                    f"`{name}` is {getattr(self, name)!r} in the ledger {path}, which contradicts "
                    f"the given {given[name]!r}."
                )

    def now(self, num_trials: int) -> float:
        """The time on the ledger's clock when it holds ``num_trials`` trials."""
        return float(num_trials) if self.clock == "iterations" else time.time()


@dataclass(frozen=True)
class Entry:
    """All that is kept of one trial; times that have not come are None.

    ``x`` holds the query's doubles, little-endian, one after the other.
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
        """This trial with its value, which came at ``time`` (default: ``now``)."""
        self._refuse_if_closed("observed")
        return replace(self, y=y, observed_at=self._moment(time, now))

    def failed(self, reason: str, time: float | None, now: float) -> Entry:
        """This trial given up for lost at ``time`` (default: ``now``)."""
        self._refuse_if_closed("marked as failed")
        return replace(self, note=reason, failed_at=self._moment(time, now))

    def abandoned(self, time: float | None, now: float) -> Entry:
        """This trial with nobody waiting for it from ``time`` on (default: ``now``)."""
        self._refuse_if_closed("abandoned")
        if self.abandoned_at is not None:
            raise TrialStateError(f"Trial {self.id} has been abandoned already.")
        return replace(self, abandoned_at=self._moment(time, now))

    def _refuse_if_closed(self, change: str) -> None:
        if self.y is not None:
            raise TrialStateError(f"Trial {self.id} has a value already: it cannot be {change}.")
        if self.failed_at is not None:
            raise TrialStateError(f"Trial {self.id} has failed: it cannot be {change}.")

    def _moment(self, time: float | None, now: float) -> float:
        if time is None:
            # The system's clock may have been set back since the submission.
            return max(now, self.submitted_at)
        if time < self.submitted_at:
            raise InputDataError(
                f"`time` {time!r} lies before the submission of trial {self.id} "
                f"at {self.submitted_at!r}."
            )
        return time
