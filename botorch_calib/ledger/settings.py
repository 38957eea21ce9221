"""The settings of a ledger: their defaults and their checks."""

from __future__ import annotations

import math
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
