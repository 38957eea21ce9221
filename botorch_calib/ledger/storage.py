"""Where trials are kept: the interface, and memory. `database` keeps them in a file."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botorch_calib.exceptions import UnknownTrialError
from botorch_calib.ledger.table import Table
from botorch_calib.ledger.trials import Entry

# What a trial becomes, given what it is and the number of trials submitted so far.
Transition = Callable[[Entry, int], Entry]

# One lock for all ledgers of the process, taken around each fork as well: a child must inherit
# neither a half-made change nor a lock, here or within SQLite, whose holder it lacks.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


class Storage(ABC):
    """Keeps trials under the ids 0, 1, ... and makes each change wholly or not at all."""

    path: Path | None = None

    @abstractmethod
    def append(self, x: bytes, submitted_at: Callable[[int], float]) -> int:
        """Keep a new trial.

        Args:
            x: The query's doubles, little-endian.
            submitted_at: Gives the time of submission from the number of trials before it.

        Returns:
            The new trial's id.
        """

    @abstractmethod
    def change(self, trial_id: int, transition: Transition) -> None:
        """Replace a trial by what ``transition`` makes of it, or leave it if that raises.

        Raises:
            UnknownTrialError: If there is no such trial.
        """

    @abstractmethod
    def count(self) -> int:
        """Number of trials."""

    @abstractmethod
    def table(self) -> Table:
        """A copy of all trials, as of one moment."""


def check_known(trial_id: int, num_trials: int) -> None:
    """Raise ``UnknownTrialError`` unless ``trial_id`` is one of the first ``num_trials``."""
    if not 0 <= trial_id < num_trials:
        raise UnknownTrialError(
            f"There is no trial {trial_id}: the ledger has {num_trials} trials."
        )


class MemoryStorage(Storage):
    """Trials in memory; a pickled copy leads a life of its own.

    Args:
        table: The trials to begin with, taken over.
    """

    def __init__(self, table: Table) -> None:
        self._table = table

    def append(self, x: bytes, submitted_at: Callable[[int], float]) -> int:
        """See `Storage`."""
        with LOCK:
            trial_id = len(self._table)
            self._table.put(Entry(trial_id, x, submitted_at(trial_id)))
            return trial_id

    def change(self, trial_id: int, transition: Transition) -> None:
        """See `Storage`."""
        with LOCK:
            check_known(trial_id, len(self._table))
            self._table.put(transition(self._table.entry(trial_id), len(self._table)))

    def count(self) -> int:
        """See `Storage`."""
        return len(self._table)

    def table(self) -> Table:
        """See `Storage`."""
        with LOCK:
            return self._table.copy()

    def __getstate__(self) -> dict[str, Any]:
        return {"_table": self.table()}
