"""Changes of a ledger's contents, each made completely or not at all: `Change`, `Storage`.

`file_storage` records the same changes in a file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import InputDataError

from botorch_calib.ledger.contents import Contents
from botorch_calib.ledger.trials import Entry

# Maps a stored trial and the time of an event to the trial that takes its place.
Transition = Callable[[Entry, float], Entry]

# One lock for all ledgers of the process. Forks take it as well: otherwise a child could inherit
# a lock (here or within SQLite) whose holder does not exist in the child.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


class Change:
    """A change of a ledger that is being made: its settings, entries and latest time may change."""

    def __init__(self, contents: Contents, is_choosing: bool) -> None:
        self.settings, self.latest = contents.settings, contents.latest
        self.entries = list(contents.entries)
        self.changed: set[int] = set()  # ids of trials that are new or replaced
        self._before, self._is_choosing = contents, is_choosing

    def now(self, not_before: float = 0.0) -> float:
        """The time of an event that happens now, after ``not_before``."""
        self.latest = max(self._before.now(self._is_choosing), self.latest, not_before)
        return self.latest

    def submission_time(self) -> float:
        """The time at which a trial is submitted now."""
        if self.settings.clock == "iterations":
            return float(len(self.entries))  # by definition, whatever else has been recorded
        return self.now()

    def append(self, x: bytes, submitted_at: float | None, **others: Any) -> int:
        """Add a trial, with ``others`` of its fields, and return its id (default time: now)."""
        trial_id = len(self.entries)
        submitted_at = self.submission_time() if submitted_at is None else submitted_at
        self.entries.append(Entry(trial_id, x, submitted_at, **others))
        self.changed.add(trial_id)
        return trial_id

    def replace(self, trial_id: Any, transition: Transition, time: float | None = None) -> None:
        """Replace a trial by what an event makes of it that happens at a time (default: now)."""
        place = self._before.place(trial_id)
        event, earliest = self.entries[place].last_event
        # The submission may have been given a time that has not come yet.
        at = self.now(earliest) if time is None else time
        self.entries[place] = transition(self.entries[place], at)
        if at < earliest:
            raise InputDataError(
                f"`time` {at!r} lies before {event} of trial {place} at {earliest!r}."
            )
        self.changed.add(place)

    def result(self) -> Contents:
        """The contents after the change."""
        if not self.changed and self.settings == self._before.settings:
            return self._before
        contents = Contents(self.settings, self.entries, self.latest)
        if any(self.entries[trial_id].context for trial_id in self.changed):
            contents.check_contexts()
        return contents


class Storage:
    """A ledger's contents in memory. A pickled copy is independent of the original."""

    path: Path | None = None

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._turn = threading.RLock()
        self._num_choices = 0

    @property
    def contents(self) -> Contents:
        """The ledger's contents now."""
        return self._contents

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """A context in which a query is chosen; other threads wait with their choices."""
        with self._turn:
            self._num_choices += 1
            try:
                yield
            finally:
                self._num_choices -= 1

    @contextmanager
    def transaction(self) -> Iterator[Change]:
        """A change, made at the end of the context, or dropped after an exception.

        No other thread can change the ledger meanwhile.
        """
        with LOCK:
            change = Change(self.contents, self._num_choices > 0)
            yield change
            contents = change.result()
            if contents is not self._contents:
                self._record(contents, sorted(change.changed))
                self._contents = contents

    def _record(self, contents: Contents, changed: list[int]) -> None:
        """Record new contents, before they take the place of the old ones."""

    def close(self) -> None:
        """Accept no more changes; memory needs no closing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.contents,)
