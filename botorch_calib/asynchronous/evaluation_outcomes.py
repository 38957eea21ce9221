"""What a finished evaluation has brought: a value, a failure, a lost worker or an interrupt."""

from __future__ import annotations

from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass
from enum import Enum
from typing import Any

from botorch.exceptions.errors import BotorchError

from botorch_calib.asynchronous.worker_pools import WorkerPool
from botorch_calib.ledger.argument_checks import as_number


class End(Enum):
    """How an evaluation ended."""

    VALUE = "value"
    FAILURE = "failure"
    LOSS = "loss"
    INTERRUPT = "interrupt"


@dataclass(frozen=True)
class Outcome:
    """The result of a finished evaluation.

    Attributes:
        end: ``VALUE``; ``FAILURE`` of the objective; ``LOSS`` of the evaluation, usually with its
            worker, for which the objective is not blamed; or ``INTERRUPT`` by the user.
        value: The value, or NaN.
        reason: Why there is no value, or empty.
        error: The exception behind the reason, or None.
    """

    end: End
    value: float = float("nan")
    reason: str = ""
    error: BaseException | None = None


def read_outcome(future: Future[Any], pool: WorkerPool) -> Outcome:
    """Read the outcome of a finished future of ``pool``."""
    try:
        error = future.exception(timeout=0)
    except CancelledError as cancelled:
        return Outcome(End.LOSS, reason="its evaluation was cancelled", error=cancelled)
    if error is None:
        return _as_value(future.result())
    reason = describe(error)
    if isinstance(error, KeyboardInterrupt):
        return Outcome(End.INTERRUPT, reason=reason, error=error)
    if pool.worker_died(error):
        return Outcome(End.LOSS, reason=f"its worker died: {reason}", error=error)
    return Outcome(End.FAILURE, reason=reason, error=error)


def read_value(future: Future[Any]) -> Outcome | None:
    """Read what a finished future returned; None if it was cancelled or raised an exception."""
    if future.cancelled() or future.exception(timeout=0) is not None:
        return None
    return _as_value(future.result(timeout=0))


def _as_value(value: Any) -> Outcome:
    try:
        return Outcome(End.VALUE, value=as_number("value", value))
    except BotorchError as error:
        reason = f"the objective's {error}".replace("`", "")
        return Outcome(End.FAILURE, reason=reason, error=error)


def describe(error: BaseException) -> str:
    """An exception in one line of text, even if it cannot be shown."""
    reason = f"{type(error).__name__}: {_text(error)}"
    # A result that cannot be unpickled breaks a process pool, and only the cause says so.
    cause = _text(error.__cause__ or "").removesuffix("'''").strip()
    if isinstance(error, BrokenExecutor) and cause:
        reason += f" ({cause.splitlines()[-1].strip()})"
    return reason


def _text(value: object) -> str:
    """``str(value)``, or a substitute if that raises."""
    try:
        return str(value)
    except Exception as error:
        return f"(its message cannot be read: {type(error).__name__})"
