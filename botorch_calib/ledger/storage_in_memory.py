"""Trials in memory: the interface of all storages, the table of trials, and `MemoryStorage`.

`storage_on_disk` keeps the same table in a file.
"""

from __future__ import annotations

import math
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from botorch_calib.exceptions import UnknownTrialError
from botorch_calib.ledger.argument_checks import DOUBLE
from botorch_calib.ledger.trials import Entry

Numbers = NDArray[np.float64]

# Maps a stored trial and the number of trials so far to the trial that takes its place.
Transition = Callable[[Entry, int], Entry]

# The numbers stored beside a query, in the order of `Entry`; NaN means that there is none yet.
FIELDS = ("submitted_at", "y", "observed_at", "abandoned_at", "failed_at")

# One lock for all ledgers of the process. Forks take it as well: otherwise a child could inherit a
# half-made change, or a lock (here or within SQLite) whose holder does not exist in the child.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


class Storage(ABC):
    """Keeps trials under the ids 0, 1, ...; each change is made completely or not at all."""

    path: Path | None = None

    @abstractmethod
    def append(self, x: bytes, submitted_at: Callable[[int], float]) -> int:
        """Add a new trial.

        Args:
            x: The query as little-endian doubles.
            submitted_at: Maps the number of earlier trials to the time of submission.

        Returns:
            The new trial's id.
        """

    @abstractmethod
    def change(self, trial_id: int, transition: Transition) -> None:
        """Replace a trial by the result of ``transition``; if that raises, change nothing.

        Raises:
            UnknownTrialError: If there is no such trial.
        """

    @abstractmethod
    def count(self) -> int:
        """Number of trials."""

    @abstractmethod
    def table(self) -> Table:
        """A consistent copy of all trials."""


class Table:
    """Trials as columns of numbers: the views of thousands of trials need no loop in Python.

    Columns grow by appending, and the row of a trial is its id.

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
        """The stored form of one trial."""
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
        """Overwrite and append many rows; new ids continue the old ones without a gap.

        Args:
            ids: ``k`` ids.
            queries: The queries as ``k x d`` little-endian doubles.
            numbers: ``k`` rows of `FIELDS`, with None for numbers that do not exist yet.
            notes: Non-empty notes by id.
        """
        if not ids:
            return
        X = np.frombuffer(queries, dtype=DOUBLE).reshape(len(ids), self._queries.shape[1])
        size = max(self._size, max(ids) + 1)
        if size > len(self._queries):
            self._grow(max(size, 2 * len(self._queries)))
        # Ctrl-C may strike between two of these lines. In this order it leaves every trial either
        # old or new: a note is ignored before its time of failure is set, and a row before the
        # size includes it.
        self._queries[ids] = X
        self._notes.update(notes)
        self._fields[ids] = np.array(numbers, dtype=np.float64)  # None becomes NaN
        self._size = size

    def copy(self) -> Table:
        """An independent copy without spare rows."""
        copied = Table(self._queries.shape[1])
        copied._size = self._size
        copied._queries = self._queries[: self._size].copy()
        copied._fields = self._fields[: self._size].copy()
        copied._notes = dict(self._notes)
        return copied

    def _grow(self, capacity: int) -> None:
        # `write` compares the capacity of the queries, so they grow last: ctrl-C between the two
        # then makes the next call grow both again.
        for name in ("_fields", "_queries"):
            old = getattr(self, name)
            new = np.empty((capacity, old.shape[1]))
            new[: self._size] = old[: self._size]
            setattr(self, name, new)


def check_known(trial_id: int, num_trials: int) -> None:
    """Raise ``UnknownTrialError`` unless ``trial_id`` is one of the first ``num_trials``."""
    if not 0 <= trial_id < num_trials:
        raise UnknownTrialError(
            f"There is no trial {trial_id}: the ledger has {num_trials} trials."
        )


class MemoryStorage(Storage):
    """Trials in memory. A pickled copy is independent of the original.

    Args:
        table: The trials to begin with; the storage takes ownership of it.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def append(self, x: bytes, submitted_at: Callable[[int], float]) -> int:
        """Add a new trial, as `Storage.append`."""
        with LOCK:
            trial_id = len(self._table)
            self._table.put(Entry(trial_id, x, submitted_at(trial_id)))
            return trial_id

    def change(self, trial_id: int, transition: Transition) -> None:
        """Replace a trial by the result of ``transition``, as `Storage.change`."""
        with LOCK:
            check_known(trial_id, len(self._table))
            self._table.put(transition(self._table.entry(trial_id), len(self._table)))

    def count(self) -> int:
        """Number of trials."""
        return len(self._table)

    def table(self) -> Table:
        """A consistent copy of all trials."""
        with LOCK:
            return self._table.copy()

    def __getstate__(self) -> dict[str, Any]:
        return {"_table": self.table()}
