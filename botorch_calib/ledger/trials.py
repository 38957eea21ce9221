"""One trial: `Trial`, as users see it, and `Entry`, as the ledger stores and changes it."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib.exceptions import TrialStateError

# An outcome of a trial's decision: a number; a pair of a bound and 1 or -1, for an outcome that is
# only known to be above or below the bound; or None if it is unknown.
Outcome = float | tuple[float, int] | None
# The outcomes of a trial by name; None if the only outcome is the trial's value.
Named = Mapping[str, Outcome] | None
# The outcomes of a trial in the order in which its decision names them, or None as above.
Outcomes = tuple[Outcome, ...] | None
# The uncontrolled inputs of an evaluation; None if there are none.
Context = tuple[float, ...] | None


class TrialStatus(StrEnum):
    """State of a trial; a member compares equal to its name in lower case.

    Example:
        >>> TrialStatus.PENDING == "pending"
        True
    """

    PENDING = "pending"
    OBSERVED = "observed"
    EXPIRED = "expired"
    FAILED = "failed"


def _frozen(stored: object) -> Any:
    """Return a value from JSON, with lists converted to tuples, as they were before storage."""
    return tuple(map(_frozen, stored)) if isinstance(stored, list) else stored


def are_among(statuses: Iterable[TrialStatus], wanted: Collection[TrialStatus]) -> Tensor:
    """Return, for each status, whether it is in ``wanted``, as a vector of booleans."""
    return torch.tensor([status in wanted for status in statuses], dtype=torch.bool)


def known_variance(yvar: float | None) -> float | None:
    """Return a noise variance, or None if it is None or NaN, both of which mean unknown."""
    return None if yvar is None or math.isnan(yvar) else yvar


class EarlierValue(NamedTuple):
    """A trial's previous value, which `FeedbackLedger.amend` has replaced.

    Attributes:
        y: The value.
        yvar: The variance of the noise of ``y``, or None.
        replaced_at: Time from which the next value is valid, on the ledger's clock.
        outcomes: The outcomes recorded with ``y``, in the order of the trial's decision, or None.
        context: The context of ``y``, or None.

    Example:
        >>> ledger.amend(ids[0], 0.6)
        >>> ledger[ids[0]].earlier[0].y
        0.5
    """

    y: float
    yvar: float | None
    replaced_at: float
    outcomes: Outcomes = None
    context: Context = None


@dataclass(frozen=True, eq=False)
class Trial:
    """A query and its result, as known at a given time.

    Attributes:
        id: The trial's number, 0, 1, ..., in the order in which trials were recorded.
        x: The query, a vector of length ``d`` in double precision.
        y: The value, or None if no value has arrived. The value of an expired trial came too late.
        submitted_at: Time of submission, on the ledger's clock.
        observed_at: Time of arrival of ``y``, or None.
        status: Pending, observed, expired or failed.
        note: The reason why the trial failed; empty unless it has failed.
        yvar: The variance of the noise of ``y``, or None if unknown.
        earlier: The values that ``y`` has replaced, the oldest first.
        context: The context of ``y``, or None.
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
    context: Context = None

    def _comparable(self) -> tuple[object, ...]:
        return tuple({**vars(self), "x": tuple(self.x.tolist())}.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trial) and self._comparable() == other._comparable()

    def __hash__(self) -> int:
        return hash(self._comparable())


# Little-endian, so that the bytes of a query are the same on every machine.
DOUBLE = np.dtype("<f8")
# Names of the fields of an `Entry` that are times.
TIMES = ("submitted_at", "observed_at", "abandoned_at", "failed_at")


class Entry(NamedTuple):
    """The immutable stored form of one trial. Times of events that have not happened are None."""

    id: int
    x: bytes  # the query as little-endian doubles
    submitted_at: float
    y: float | None = None
    observed_at: float | None = None
    abandoned_at: float | None = None
    failed_at: float | None = None
    yvar: float | None = None
    note: str = ""
    earlier: tuple[EarlierValue, ...] = ()
    decision: str | None = None  # the row of the decision about the query, as JSON
    outcomes: Outcomes = None
    context: Context = None

    @classmethod
    def restored(cls, row: Sequence[Any]) -> Self:
        """Return the entry in a row of the file. Lists are stored as JSON, exact to the bit."""
        *values, earlier, decision, outcomes, context = row
        before = tuple(EarlierValue(*map(_frozen, value)) for value in json.loads(earlier))
        own, came_in = (_frozen(json.loads(each or "null")) for each in (outcomes, context))
        return cls._make([*values, before, decision, own, came_in])

    @property
    def last_event(self) -> tuple[str, float]:
        """The submission or the last value, in words, and its time, which no change may precede."""
        if self.observed_at is None:
            return "the submission", self.submitted_at
        return "the last value", self.earlier[-1].replaced_at if self.earlier else self.observed_at

    def observed(
        self, at: float, y: float, yvar: float | None, outcomes: Named, context: Context
    ) -> Self:
        """Return this trial with a value that arrived at the time ``at``."""
        self._refuse_if_closed("observed")
        in_order, context = self._in_order(outcomes), context or None
        yvar = known_variance(yvar)
        return self._replace(y=y, yvar=yvar, outcomes=in_order, context=context, observed_at=at)

    def amended(
        self, at: float, y: float, yvar: float | None, outcomes: Named, context: Context
    ) -> Self:
        """Return this trial with a new value from ``at`` on; None leaves a field unchanged."""
        if self.y is None:
            state = "has failed" if self.failed_at is not None else "has none yet"
            raise TrialStateError(f"Trial {self.id} has no value to amend: it {state}.")
        before = EarlierValue(self.y, self.yvar, at, self.outcomes, self.context)
        return self._replace(
            y=y,
            yvar=self.yvar if yvar is None else known_variance(yvar),
            outcomes=self.outcomes if outcomes is None else self._in_order(outcomes),
            context=self.context if context is None else context or None,  # () removes it
            earlier=(*self.earlier, before),
        )

    def failed(self, reason: str, at: float, outcomes: Named = None) -> Self:
        self._refuse_if_closed("marked as failed")
        in_order = None if outcomes is None else self._in_order(outcomes)
        return self._replace(note=reason, failed_at=at, outcomes=in_order)

    def abandoned(self, at: float) -> Self:
        self._refuse_if_closed("abandoned")
        if self.abandoned_at is not None:
            raise TrialStateError(f"Trial {self.id} has been abandoned already.")
        return self._replace(abandoned_at=at)

    def _in_order(self, outcomes: Named) -> Outcomes:
        """Return outcomes in the order of the decision. None is allowed for one outcome at most."""
        names = [] if self.decision is None else [*json.loads(self.decision)["outcomes"]]
        if len(names) > 1 if outcomes is None else outcomes.keys() != {*names}:
            raise InputDataError(
                f"`outcomes` must have one entry for each of {names} in the decision about trial "
                f"{self.id}, got {outcomes}."
            )
        return None if outcomes is None else tuple(outcomes[name] for name in names)

    def decided(self, now: float) -> dict[str, Any] | None:
        """Return the decision's row with the outcomes known at ``now``; None without a decision."""
        if self.decision is None:
            return None
        row: dict[str, Any] = json.loads(self.decision)
        came: Outcomes = None
        if self.observed_at is not None and self.observed_at <= now:
            value = self.standing(now)
            came = value.outcomes or (value.y,)
        elif self.failed_at is not None and self.failed_at <= now:
            came = self.outcomes
        for name, y in zip(row["outcomes"], came or (), strict=came is not None):
            row["outcomes"][name] = y
            if isinstance(y, tuple):
                row["outcomes"][name], row.setdefault("beyond", {})[name] = y
        return row

    def standing(self, now: float) -> Self | EarlierValue:
        """Return the record of the value valid at ``now``; a value must have arrived by then."""
        return next((value for value in self.earlier if value.replaced_at > now), self)

    def _refuse_if_closed(self, change: str) -> None:
        if self.y is not None:
            hint = ": `amend` replaces it" if change == "observed" else ""
            raise TrialStateError(
                f"Trial {self.id} has a value already{hint or f': it cannot be {change}'}."
            )
        if self.failed_at is not None:
            raise TrialStateError(f"Trial {self.id} has failed: it cannot be {change}.")
