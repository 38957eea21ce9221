"""Trials in memory: the interface of all storages, a change of one, and `MemoryStorage`.

`storage_on_disk` keeps the same table in a file.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from botorch_calib.exceptions import UnknownTrialError
from botorch_calib.ledger.owners import Owner
from botorch_calib.ledger.settings import Clock, Settings
from botorch_calib.ledger.table import Table
from botorch_calib.ledger.trials import Entry

# Maps a stored trial and the ledger's clock to the trial that takes its place.
Transition = Callable[[Entry, Clock], Entry]

# One lock for all ledgers of the process. Forks take it as well: otherwise a child could inherit a
# half-made change, or a lock (here or within SQLite) whose holder does not exist in the child.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


class Change:
    """What one change of a ledger is to write, and what is there before.

    Args:
        settings: The ledger's settings, which may be replaced.
        num_trials: Number of trials before the change.
        latest: The latest time that the ledger's clock has told.
        owners: The runs that use the ledger, by name, which may be replaced, added or removed.
        read: Reads one trial.
        table: Reads all trials. They must not be changed.

    Attributes:
        entries: Trials to write, by id.
    """

    def __init__(
        self,
        settings: Settings,
        num_trials: int,
        latest: float,
        owners: dict[str, Owner],
        read: Callable[[int], Entry],
        table: Callable[[], Table],
    ) -> None:
        self.settings = settings
        self.num_trials = num_trials
        self.owners = dict(owners)
        self.table = table
        self.clock = Clock(settings, num_trials, latest, any(o.turn for o in owners.values()))
        self.entries: dict[int, Entry] = {}
        self._read = read

    def replace(self, trial_id: int, transition: Transition) -> Entry:
        """Replace a trial by the result of ``transition``, which is returned."""
        check_known(trial_id, self.num_trials)
        entry = self.entries.get(trial_id) or self._read(trial_id)
        self.entries[trial_id] = transition(entry, self.clock)
        return self.entries[trial_id]

    def append(self, entry: Entry) -> None:
        """Add a trial, whose id is ``num_trials``."""
        assert entry.id == self.num_trials
        self.entries[entry.id] = entry
        self.num_trials += 1


class Storage(ABC):
    """Keeps trials under the ids 0, 1, ...; each change is made completely or not at all."""

    path: Path | None = None
    settings: Settings

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Change]:
        """A change, written at the end of the context, or dropped after an exception.

        No other process or thread can change the ledger meanwhile.
        """

    @abstractmethod
    def extent(self) -> tuple[int, float]:
        """Number of trials, and the latest time that the ledger's clock has told."""

    @abstractmethod
    def table(self) -> Table:
        """A consistent copy of all trials."""

    @abstractmethod
    def stock(self) -> tuple[Table, dict[str, Owner]]:
        """As `table`, with the runs that use the ledger at the same time."""

    def append(self, make: Callable[[int, Clock], Sequence[Entry]]) -> list[int]:
        """Add new trials.

        Args:
            make: Maps the number of earlier trials and the clock to the new ones.

        Returns:
            Their ids.
        """
        with self.transaction() as change:
            entries = make(change.num_trials, change.clock)
            for entry in entries:
                change.append(entry)
        return [entry.id for entry in entries]

    def change(self, trial_id: int, transition: Transition) -> Entry:
        """Replace a trial by the result of ``transition``; if that raises, change nothing.

        Returns:
            The trial as it is now.

        Raises:
            UnknownTrialError: If there is no such trial.
        """
        with self.transaction() as change:
            return change.replace(trial_id, transition)


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
        settings: The ledger's settings.
    """

    def __init__(self, table: Table, settings: Settings) -> None:
        self._table = table
        self._owners: dict[str, Owner] = {}
        self.settings = settings

    @contextmanager
    def transaction(self) -> Iterator[Change]:
        """A change, as `Storage.transaction`."""
        with LOCK:
            table = self._table
            change = Change(
                self.settings,
                len(table),
                table.latest,
                self._owners,
                table.entry,
                lambda: table,
            )
            yield change
            table.write(list(change.entries.values()))
            table.latest = change.clock.latest
            self._owners, self.settings = change.owners, change.settings

    def extent(self) -> tuple[int, float]:
        """Number of trials and latest time, as `Storage.extent`."""
        with LOCK:
            return len(self._table), self._table.latest

    def table(self) -> Table:
        """A consistent copy of all trials."""
        with LOCK:
            return self._table.copy()

    def stock(self) -> tuple[Table, dict[str, Owner]]:
        """A copy of all trials, and the runs that use them."""
        with LOCK:
            return self._table.copy(), dict(self._owners)

    def __getstate__(self) -> dict[str, Any]:
        # The runs that use the original do not use a copy.
        return {"_table": self.table(), "_owners": {}, "settings": self.settings}
