"""`Contents`: all that a ledger holds at one moment, with its numbers as columns; its `Clock`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from botorch_calib.exceptions import UnknownTrialError
from botorch_calib.ledger.argument_checks import DOUBLE
from botorch_calib.ledger.settings import Settings
from botorch_calib.ledger.trials import NUMBERS, EarlierValue, Entry

Numbers = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Contents:
    """A ledger's settings and trials. A change makes new contents; what was read stays as it was.

    Attributes:
        settings: The ledger's settings.
        entries: The trials; the position of each is its id.
        latest: The latest time that the ledger's clock has told.
    """

    settings: Settings
    entries: Sequence[Entry] = ()
    latest: float = 0.0

    def __len__(self) -> int:
        return len(self.entries)

    def now(self, is_choosing: bool = False) -> float:
        """The present time on the ledger's clock.

        What the clock has told has happened, even if the system's clock was set back since. A
        choice that is under way does not see what happens now: on the clock of iterations, that
        happens in the next one.
        """
        is_counted = self.settings.clock == "iterations"
        return max(float(len(self) + is_choosing) if is_counted else time.time(), self.latest)

    def check_known(self, trial_id: int) -> None:
        """Raise ``UnknownTrialError`` unless there is a trial with this id."""
        if not 0 <= trial_id < len(self):
            raise UnknownTrialError(
                f"There is no trial {trial_id}: the ledger has {len(self)} trials."
            )

    # Views of thousands of trials need no loop in Python: there is one here, after each change.

    @cached_property
    def X(self) -> Numbers:
        """The queries, ``n x d``."""
        queries = b"".join(entry.x for entry in self.entries)
        doubles = np.frombuffer(queries, dtype=DOUBLE).astype(np.float64)
        return doubles.reshape(len(self), self.settings.dim)

    @cached_property
    def columns(self) -> dict[str, Numbers]:
        """The other numbers by name, as vectors of length ``n``, with NaN for None."""
        entries = self.entries
        return {
            name: np.array([getattr(entry, name) for entry in entries], dtype=np.float64)
            for name in NUMBERS
        }

    @cached_property
    def amended(self) -> list[tuple[int, tuple[EarlierValue, ...]]]:
        """The trials whose value was replaced, with what stood before."""
        return [(entry.id, entry.earlier) for entry in self.entries if entry.earlier]


class Clock:
    """A ledger's clock during one change; ``latest`` is the latest time that it has told."""

    def __init__(self, contents: Contents, is_choosing: bool) -> None:
        self._contents, self._is_choosing = contents, is_choosing
        self.latest = contents.latest

    def submission(self, trial_id: int) -> float:
        """The time at which a trial with this id is submitted."""
        if self._contents.settings.clock == "iterations":
            return float(trial_id)  # by definition, whatever else has been recorded
        return self.event()

    def event(self, not_before: float = 0.0) -> float:
        """The time of anything else that happens now, after ``not_before``."""
        self.latest = max(self._contents.now(self._is_choosing), self.latest, not_before)
        return self.latest
