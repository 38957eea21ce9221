"""Changes of a ledger's contents, each made completely or not at all: `Change`, `Storage`.

`file_storage` records the same changes in a file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from botorch_calib.ledger.contents import Clock, Contents
from botorch_calib.ledger.trials import Entry

# Maps a stored trial, and what tells the time, to the trial that takes its place.
Transition = Callable[[Entry, Callable[[float], float]], Entry]

# One lock for all ledgers of the process. Forks take it as well: otherwise a child could inherit
# a lock (here or within SQLite) whose holder does not exist in the child.
LOCK = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=LOCK.release
    )


class Change:
    """A change of a ledger that is being made.

    Args:
        contents: What is there before.
        is_choosing: Whether a query is being chosen.

    Attributes:
        settings: The ledger's settings, which may be replaced.
        entries: All trials.
        clock: The ledger's clock.
        changed: Ids of the trials that are new or replaced.
    """

    def __init__(self, contents: Contents, is_choosing: bool) -> None:
        self.settings = contents.settings
        self.entries = list(contents.entries)
        self.clock = Clock(contents, is_choosing)
        self.changed: list[int] = []
        self._before = contents

    def append(self, x: bytes, time: float | None, **others: Any) -> Entry:
        """Add a trial, submitted at ``time`` (default: now), with ``others`` of its fields."""
        trial_id = len(self.entries)
        time = self.clock.submission(trial_id) if time is None else time
        self.entries.append(Entry(trial_id, x, time, **others))
        self.changed.append(trial_id)
        return self.entries[trial_id]

    def replace(self, trial_id: int, transition: Transition) -> Entry:
        """Replace a trial by the result of ``transition``, which is returned."""
        self._before.check_known(trial_id)
        self.entries[trial_id] = transition(self.entries[trial_id], self.clock.event)
        self.changed.append(trial_id)
        return self.entries[trial_id]

    def result(self) -> Contents:
        """What is there after the change."""
        if not self.changed and self.settings == self._before.settings:
            return self._before
        return replace(
            self._before,
            settings=self.settings,
            entries=self.entries,
            latest=self.clock.latest,
        )


class Storage:
    """A ledger's contents in memory. A pickled copy is independent of the original.

    Args:
        contents: What is there at the beginning.
    """

    path: Path | None = None

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._turn = threading.RLock()
        self._num_choices = 0

    @property
    def contents(self) -> Contents:
        """What the ledger holds now."""
        return self._contents

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """The choice of a query, while which other threads wait with theirs."""
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
                self._record(contents, sorted(set(change.changed)))
                self._contents = contents

    def _record(self, contents: Contents, changed: list[int]) -> None:
        """Record what is about to take the place of the contents."""

    def close(self) -> None:
        """Accept no more changes; memory needs no closing."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Storage, (self.contents,)
