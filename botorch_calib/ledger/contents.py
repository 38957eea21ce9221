"""`Contents`: a ledger's `Settings` and trials at one moment."""

from __future__ import annotations

import math
import operator
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, SupportsIndex

import numpy as np
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray

from botorch_calib._validation import (
    check_count,
    check_flag,
    check_nonnegative,
    check_number,
    check_one_of,
)
from botorch_calib.exceptions import UnknownTrialError
from botorch_calib.ledger.trials import DOUBLE, TIMES, Entry

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Settings:
    """The validated settings of a ledger; ``maximize`` is None until a value is recorded."""

    dim: int
    censor_value: float | None = None
    max_wait: float = math.inf
    late: str | None = None
    clock: str = "iterations"
    maximize: bool | None = None

    def __post_init__(self) -> None:
        own = vars(self)
        own["dim"] = check_count("dim", self.dim)
        if self.censor_value is not None:
            own["censor_value"] = check_number("censor_value", self.censor_value) + 0.0  # not -0.0
        own["max_wait"] = check_nonnegative("max_wait", self.max_wait, allow_inf=True)
        if self.late is None:
            own["late"] = "use" if math.isinf(self.max_wait) else "discard"
        check_one_of("late", self.late, ("use", "discard"))
        check_one_of("clock", self.clock, ("iterations", "seconds"))
        if self.maximize is not None:
            own["maximize"] = check_flag("maximize", self.maximize)

    def check_agrees(self, given: dict[str, Any], path: object) -> None:
        """Raise ``InputDataError`` if ``given`` settings, by name, contradict these settings.

        Nothing contradicts a ``maximize`` of None. The error calls the ledger ``path``.
        """
        wanted = vars(replace(self, **given))
        for name, stated in vars(self).items():
            is_open = name == "maximize" and stated is None
            if name in given and wanted[name] != stated and not is_open:
                raise InputDataError(
                    f"`{name}` is {stated!r} in the ledger {path}, which contradicts the given "
                    f"{given[name]!r}: pass it once, when the ledger is made."
                )


@dataclass(frozen=True, eq=False)
class Contents:
    """A ledger's settings and trials. Contents are immutable: a change returns new contents."""

    settings: Settings
    entries: Sequence[Entry] = ()  # in order of id: 0, 1, ...
    latest: float = 0.0  # time of the last change, on the ledger's clock

    def __len__(self) -> int:
        return len(self.entries)

    def now(self, is_choosing: bool = False) -> float:
        """The current time on the ledger's clock, which never goes back, unlike the system's clock.

        ``is_choosing`` says whether a thread is choosing a query. With the clock of iterations, an
        event then belongs to the next iteration, so that the choice ignores it.
        """
        is_counted = self.settings.clock == "iterations"
        return max(float(len(self) + is_choosing) if is_counted else time.time(), self.latest)

    def place(self, trial_id: SupportsIndex) -> int:
        """Return the id as an ``int``; raise ``UnknownTrialError`` if the trial does not exist."""
        try:
            place = operator.index(trial_id)
        except TypeError:
            raise UnknownTrialError(f"A trial's id is an integer, got {trial_id!r}.") from None
        if not 0 <= place < len(self):
            raise UnknownTrialError(
                f"There is no trial {place}: the ledger has {len(self)} trials."
            )
        return place

    def changed(self, entries: Sequence[Entry], latest: float) -> Self:
        """Return contents with new or replaced ``entries``, after a change at time ``latest``."""
        after = [*self.entries]
        for entry in entries:
            after[entry.id : entry.id + 1] = [entry]
        contents = replace(self, entries=after, latest=latest)
        if any(entry.context for entry in entries) and len(contents.context_dims) > 1:
            numbers = [f"{num} in trial {entry.id}" for num, entry in contents.context_dims.items()]
            raise BotorchTensorDimensionError(
                "`context` must have the same number of elements in all trials, got "
                f"{' and '.join(numbers)}. If the context of another trial is wrong, `amend` that "
                "trial first, with the right context or with `[]`."
            )
        return contents

    # The following arrays are cached until the ledger changes, and so gets new contents. Then views
    # of thousands of trials at different times need no loops.

    @cached_property
    def X(self) -> Numbers:
        """The queries of all trials, ``n x d``, in order of id."""
        doubles = np.frombuffer(b"".join(entry.x for entry in self.entries), dtype=DOUBLE)
        return doubles.astype(np.float64).reshape(len(self), self.settings.dim)

    @cached_property
    def columns(self) -> dict[str, Numbers]:
        """For each name in `TIMES`, the times of all trials as a vector, with NaN for None."""
        return {
            name: np.array([entry[place] for entry in self.entries], dtype=np.float64)
            for place, name in enumerate(Entry._fields)
            if name in TIMES
        }

    @cached_property
    def context_dims(self) -> dict[int, Entry]:
        """For each length that a context has, one trial with a context of this length."""
        return {len(entry.context): entry for entry in self.entries if entry.context is not None}
