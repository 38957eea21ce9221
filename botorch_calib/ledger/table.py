"""Trials as columns of numbers, so that views of thousands of trials need no loop."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from botorch_calib.ledger.arguments import DOUBLE
from botorch_calib.ledger.trials import Entry

Numbers = NDArray[np.float64]

# The numbers kept beside a query, in the order of `Entry`; NaN stands for what has not come.
FIELDS = ("submitted_at", "y", "observed_at", "abandoned_at", "failed_at")


class Table:
    """Columns that grow by appending; the row of a trial is its id.

    Args:
        dim: Number ``d`` of elements of a query.
    """

    def __init__(self, dim: int) -> None:
        self._size = 0
        self._queries: Numbers = np.empty((0, dim))
        self._fields: Numbers = np.empty((0, len(FIELDS)))
        self._notes: dict[int, str] = {}

    def __len__(self) -> int:
        return self._size

    @property
    def X(self) -> Numbers:
        """The queries, ``n x d``."""
        return self._queries[: self._size]

    def column(self, name: str) -> Numbers:
        """One of `FIELDS`, as a vector of length ``n``."""
        return self._fields[: self._size, FIELDS.index(name)]

    def note(self, trial_id: int) -> str:
        """Why a trial failed, or an empty string."""
        return self._notes.get(trial_id, "")

    def entry(self, trial_id: int) -> Entry:
        """All that is kept of one trial."""
        submitted_at, *others = self._fields[trial_id].tolist()
        y, observed_at, abandoned_at, failed_at = (
            None if math.isnan(number) else number for number in others
        )
        x = self._queries[trial_id].astype(DOUBLE).tobytes()
        note = self.note(trial_id)
        return Entry(trial_id, x, submitted_at, y, observed_at, abandoned_at, failed_at, note)

    def put(self, entry: Entry) -> None:
        """Append a trial whose id is the number of rows, or overwrite an earlier one."""
        numbers = [getattr(entry, name) for name in FIELDS]
        self.write([entry.id], entry.x, [numbers], {entry.id: entry.note} if entry.note else {})

    def write(
        self,
        ids: Sequence[int],
        queries: bytes,
        numbers: Sequence[Sequence[float | None]],
        notes: dict[int, str],
    ) -> None:
        """Overwrite and append many rows; the new ids follow the old ones without a gap.

        Args:
            ids: ``k`` ids.
            queries: The ``k x d`` doubles of the queries, little-endian.
            numbers: ``k`` rows of `FIELDS`, None for what has not come.
            notes: Notes that are not empty, by id.
        """
        if not ids:
            return
        X = np.frombuffer(queries, dtype=DOUBLE).reshape(len(ids), self._queries.shape[1])
        size = max(self._size, max(ids) + 1)
        if size > len(self._queries):
            self._grow(max(size, 2 * len(self._queries)))
        # In an order in which ctrl-C between two lines leaves every trial as it was or as it is
        # to be: a note counts for nothing before its time of failure, a row before the size.
        self._queries[ids] = X
        self._notes.update(notes)
        self._fields[ids] = np.array(numbers, dtype=np.float64)  # None becomes NaN
        self._size = size

    def copy(self) -> Table:
        """A table of its own, without spare rows."""
        copied = Table(self._queries.shape[1])
        copied._size = self._size
        copied._queries = self._queries[: self._size].copy()
        copied._fields = self._fields[: self._size].copy()
        copied._notes = dict(self._notes)
        return copied

    def _grow(self, capacity: int) -> None:
        for name in ("_fields", "_queries"):  # the capacity that is asked for comes last
            old = getattr(self, name)
            new = np.empty((capacity, old.shape[1]))
            new[: self._size] = old[: self._size]
            setattr(self, name, new)
