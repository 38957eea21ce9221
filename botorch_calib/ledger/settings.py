"""The settings of a ledger: their defaults, their checks, and its clock."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

from botorch.exceptions.errors import InputDataError

from botorch_calib._validation import check_count, check_one_of
from botorch_calib.ledger.argument_checks import as_number

CLOCKS = ("iterations", "seconds")
LATE = ("use", "discard")


@dataclass(frozen=True)
class Settings:
    """The settings of a ledger, checked. `FeedbackLedger` explains the choices.

    Attributes:
        dim: Number ``d`` of elements of a query.
        censor_value: The value that replaces a missing one, in units of the outcome, or None.
        max_wait: How long to wait for a value, in units of the clock.
        late: One of `LATE`: whether values that arrive after ``max_wait`` are used.
        clock: One of `CLOCKS`.
    """

    dim: int
    censor_value: float | None = None
    max_wait: float = math.inf
    late: str = "use"
    clock: str = "iterations"

    def __post_init__(self) -> None:
        object.__setattr__(self, "dim", check_count("dim", self.dim))
        if self.censor_value is not None:
            censor_value = as_number("censor_value", self.censor_value) + 0.0  # no -0.0
            object.__setattr__(self, "censor_value", censor_value)
        wait = as_number("max_wait", self.max_wait, finite=False) + 0.0
        if wait < 0.0:
            raise InputDataError(f"`max_wait` must be at least 0, got {self.max_wait!r}.")
        object.__setattr__(self, "max_wait", wait)
        for name, choices in (("late", LATE), ("clock", CLOCKS)):
            check_one_of(name, getattr(self, name), choices)

    def check_agrees(self, given: dict[str, Any], path: object) -> None:
        """Raise ``InputDataError`` if any of the ``given`` settings differs from this one's."""
        wanted = replace(self, **given)
        for name in given:
            if getattr(wanted, name) != getattr(self, name):
                raise InputDataError(
                    f"`{name}` is {getattr(self, name)!r} in the ledger {path}, which contradicts "
                    f"the given {given[name]!r}."
                )

    def now(self, num_trials: int) -> float:
        """The time on the ledger's clock when it holds ``num_trials`` trials."""
        return float(num_trials) if self.clock == "iterations" else time.time()
