"""The settings of a ledger: their defaults, their checks, and its clock."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

from botorch.exceptions.errors import InputDataError

from botorch_calib._validation import check_count, check_one_of
from botorch_calib.ledger.argument_checks import as_number, check_flag

CLOCKS = ("iterations", "seconds")
LATE = ("use", "discard")


@dataclass(frozen=True)
class Settings:
    """The settings of a ledger, checked; `FeedbackLedger` explains them.

    ``late`` is replaced where it is None, and ``maximize`` is None if nobody has said so.
    """

    dim: int
    censor_value: float | None = None
    max_wait: float = math.inf
    late: str | None = None
    clock: str = "iterations"
    maximize: bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", check_count("dim", self.dim))
        if self.censor_value is not None:
            censor_value = as_number("censor_value", self.censor_value) + 0.0  # no -0.0
            object.__setattr__(self, "censor_value", censor_value)
        wait = as_number("max_wait", self.max_wait, finite=False) + 0.0
        if wait < 0.0:
            raise InputDataError(f"`max_wait` must be at least 0, got {self.max_wait!r}.")
        object.__setattr__(self, "max_wait", wait)
        if self.late is None:
            object.__setattr__(self, "late", "use" if math.isinf(wait) else "discard")
        for name, choices in (("late", LATE), ("clock", CLOCKS)):
            check_one_of(name, getattr(self, name), choices)
        if self.maximize is not None:
            object.__setattr__(self, "maximize", check_flag("maximize", self.maximize))

    def check_agrees(self, given: dict[str, Any], path: object) -> None:
        """Raise ``InputDataError`` if any of the ``given`` settings differs from this one's."""
        wanted = replace(self, **given)
        for name in given:
            if name == "maximize" and self.maximize is None:
                continue  # nobody has said so yet
            if getattr(wanted, name) != getattr(self, name):
                raise InputDataError(
                    f"`{name}` is {getattr(self, name)!r} in the ledger {path}, which contradicts "
                    f"the given {given[name]!r}."
                )

    def now(self, num_trials: int, latest: float) -> float:
        """The present time on the ledger's clock.

        The clock never runs behind ``latest``: what it has recorded has happened, even if the
        system's clock was set back since.
        """
        return max(float(num_trials) if self.clock == "iterations" else time.time(), latest)


class Clock:
    """A ledger's clock during one change.

    Args:
        settings: The ledger's settings.
        num_trials: Number of trials before the change.
        latest: The latest time that the clock has told in earlier changes.
        is_choosing: Whether a query is being chosen.

    Attributes:
        latest: The latest time that the clock has told.
    """

    def __init__(
        self, settings: Settings, num_trials: int, latest: float, is_choosing: bool
    ) -> None:
        self._settings = settings
        # A choice that is under way does not see what happens now: on the clock of iterations,
        # that happens in the next one.
        self._count = num_trials + is_choosing
        self.latest = latest

    def submission(self, trial_id: int) -> float:
        """The time at which a trial with this id is submitted."""
        if self._settings.clock == "iterations":
            return float(trial_id)  # by definition, whatever else has been recorded
        return self.event()

    def event(self, not_before: float = 0.0) -> float:
        """The time of anything else that happens now, after ``not_before``."""
        self.latest = max(self._settings.now(self._count, self.latest), not_before)
        return self.latest
