"""`Table`: trials as columns of numbers, which both storages keep."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from botorch_calib.ledger.argument_checks import DOUBLE
from botorch_calib.ledger.trials import EarlierValue, Entry

Numbers = NDArray[np.float64]

# The numbers stored beside a query, in the order of `Entry`; NaN means that there is none yet.
FIELDS = ("submitted_at", "y", "observed_at", "abandoned_at", "failed_at", "yvar")


class Details(NamedTuple):
    """What few trials have: the attributes of `Entry` that are not numbers."""

    note: str = ""
    owner: str = ""
    earlier: tuple[EarlierValue, ...] = ()


NONE = Details()


class Table:
    """Trials as columns of numbers: the views of thousands of trials need no loop in Python.

    Columns grow by appending, and the row of a trial is its id.

    Args:
        dim: Number ``d`` of elements of a query.

    Attributes:
        latest: The latest time that the ledger's clock has told.
    """

    def __init__(self, dim: int) -> None:
        self._size = 0
        self._queries: Numbers = np.empty((0, dim))
        self._fields: Numbers = np.empty((0, len(FIELDS)))
        self._details: dict[int, Details] = {}
        self.latest = 0.0

    def __len__(self) -> int:
        return self._size

    @property
    def X(self) -> Numbers:
        """The queries, ``n x d``."""
        return self._queries[: self._size]

    def column(self, name: str) -> Numbers:
        """One of `FIELDS`, as a vector of length ``n``."""
        return self._fields[: self._size, FIELDS.index(name)]

    def details(self, trial_id: int) -> Details:
        """What a trial has besides numbers."""
        return self._details.get(trial_id, NONE)

    def amended(self) -> Iterator[tuple[int, tuple[EarlierValue, ...]]]:
        """The trials whose value was replaced, with what stood before."""
        return ((i, details.earlier) for i, details in self._details.items() if details.earlier)

    def owners(self) -> dict[int, str]:
        """The runs that evaluate trials, by the trials' ids."""
        return {i: details.owner for i, details in self._details.items() if details.owner}

    def entry(self, trial_id: int) -> Entry:
        """The stored form of one trial."""
        fields = self._fields[trial_id].tolist()
        values: list[Any] = [None if math.isnan(number) else number for number in fields]
        values += self.details(trial_id)
        return Entry(trial_id, self._queries[trial_id].astype(DOUBLE).tobytes(), *values)

    def write(self, entries: Sequence[Entry]) -> None:
        """Overwrite and append trials; new ids continue the old ones without a gap."""
        if not entries:
            return
        ids = [entry.id for entry in entries]
        queries = b"".join(entry.x for entry in entries)
        X = np.frombuffer(queries, dtype=DOUBLE).reshape(len(ids), self._queries.shape[1])
        numbers = [[getattr(entry, name) for name in FIELDS] for entry in entries]
        size = max(self._size, max(ids) + 1)
        if size > len(self._queries):
            self._grow(max(size, 2 * len(self._queries)))
        # Ctrl-C may strike between two of these lines. In this order it leaves every trial either
        # old or new: a note is ignored before its time of failure is set, and a row before the
        # size includes it.
        self._queries[ids] = X
        for entry in entries:
            details = Details(entry.note, entry.owner, entry.earlier)
            if details != NONE:
                self._details[entry.id] = details
            else:
                self._details.pop(entry.id, None)
        self._fields[ids] = np.array(numbers, dtype=np.float64)  # None becomes NaN
        self._size = size

    def copy(self) -> Table:
        """An independent copy without spare rows."""
        copied = Table(self._queries.shape[1])
        copied._size, copied.latest = self._size, self.latest
        copied._queries = self._queries[: self._size].copy()
        copied._fields = self._fields[: self._size].copy()
        copied._details = dict(self._details)
        return copied

    def _grow(self, capacity: int) -> None:
        # `write` compares the capacity of the queries, so they grow last: ctrl-C between the two
        # then makes the next call grow both again.
        for name in ("_fields", "_queries"):
            old = getattr(self, name)
            new = np.empty((capacity, old.shape[1]))
            new[: self._size] = old[: self._size]
            setattr(self, name, new)
