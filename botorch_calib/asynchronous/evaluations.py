"""Evaluations of an objective, and what their futures say once they have finished."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from botorch.exceptions.errors import BotorchError

from botorch_calib.asynchronous.pools import WorkerPool
from botorch_calib.ledger.argument_checks import as_number
from botorch_calib.ledger.trials import Trial

Objective = Callable[[np.ndarray], Any]


class End(Enum):
    """How an evaluation ended."""

    VALUE = "value"
    FAILURE = "failure"
    LOSS = "loss"
    INTERRUPT = "interrupt"


@dataclass(frozen=True)
class Outcome:
    """What an evaluation has brought.

    Attributes:
        end: A value; a failure of the objective; the loss of its worker, in which case the
            objective is not to blame; or an interrupt by the user.
        value: The value, or NaN.
        reason: Why there is none, or empty.
        error: The exception behind it, or None.
    """

    end: End
    value: float = float("nan")
    reason: str = ""
    error: BaseException | None = None


@dataclass(eq=False)
class Evaluation:
    """A trial that is to be evaluated.

    Attributes:
        trial: The trial, as it was submitted.
        num_losses: How often it has been lost with its worker.
    """

    trial: Trial
    num_losses: int = 0


@dataclass(eq=False)
class Run:
    """An evaluation in an executor.

    Attributes:
        evaluation: What runs.
        pool: Where it runs.
        started: When it was first seen to run, on the monotonic clock; None before.
    """

    evaluation: Evaluation
    pool: WorkerPool
    started: float | None = None

    @property
    def trial(self) -> Trial:
        """The trial that is evaluated."""
        return self.evaluation.trial

    def time_left(self, future: Future[Any], timeout: float, now: float) -> float:
        """Seconds until it times out, now being ``now``; infinite before it starts."""
        if self.started is None:
            if not self.pool.has_started(future):
                return math.inf
            self.started = now
        return self.started + timeout - now


def read_outcome(future: Future[Any], pool: WorkerPool) -> Outcome:
    """What a finished future of ``pool`` has brought."""
    try:
        error = future.exception(timeout=0)
    except CancelledError as cancelled:
        return Outcome(End.LOSS, reason="its evaluation was cancelled", error=cancelled)
    if error is None:
        return _read_value(future.result())
    reason = _describe(error)
    if isinstance(error, KeyboardInterrupt):
        return Outcome(End.INTERRUPT, reason=reason, error=error)
    # An objective may have broken an executor of its own, which is a failure like any other.
    broken = isinstance(error, BrokenExecutor) and pool.is_broken
    if broken or _is_lost_by_dask(error):
        return Outcome(End.LOSS, reason=f"its worker died: {reason}", error=error)
    return Outcome(End.FAILURE, reason=reason, error=error)


def _read_value(value: Any) -> Outcome:
    try:
        return Outcome(End.VALUE, value=as_number("value", value))
    except BotorchError as error:
        reason = f"the objective's {error}".replace("`", "")
        return Outcome(End.FAILURE, reason=reason, error=error)


def _describe(error: BaseException) -> str:
    reason = f"{type(error).__name__}: {_text(error)}"
    # A result that cannot be unpickled breaks a process pool; only the cause tells.
    cause = _text(error.__cause__ or "").strip("\n' ")
    if isinstance(error, BrokenExecutor) and cause:
        reason += f" ({cause.splitlines()[-1].strip()})"
    return reason


def _text(value: object) -> str:
    """What ``value`` says, also if its class has a fault that lets it say nothing."""
    try:
        return str(value)
    except Exception as error:
        return f"(its message cannot be read: {type(error).__name__})"


def _is_lost_by_dask(error: BaseException) -> bool:
    """Whether Dask has given a task up since workers died of it, by default four of them.

    Known by its name: this package does not import Dask, which need not be installed.
    """
    return any(
        kind.__name__ == "KilledWorker" and kind.__module__.startswith("distributed.")
        for kind in type(error).__mro__
    )
