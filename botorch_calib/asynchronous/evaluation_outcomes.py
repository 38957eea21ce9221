"""Outcomes of evaluations: a value, a failure, a lost worker or an interrupt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import BrokenExecutor, CancelledError, Future
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from botorch.exceptions.errors import BotorchError, InputDataError

from botorch_calib._validation import check_number

# What an objective may return by name, beside its value: arguments of `FeedbackLedger.tell`.
BESIDE = ("yvar", "outcomes", "context")

# How an evaluation ended. For a loss, usually with its worker, the objective is not blamed; an
# interrupt comes from the user.
End = Enum("End", "VALUE FAILURE LOSS INTERRUPT")


@dataclass(frozen=True)
class Outcome:
    """The value of a finished evaluation, or the reason and the error for which there is none."""

    end: End
    value: float = float("nan")
    beside: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    error: BaseException | None = None

    @classmethod
    def of(cls, result: Any) -> Outcome:
        """The outcome of an evaluation that returned."""
        try:
            named = dict(result) if isinstance(result, Mapping) else {"y": result}
            if "y" not in named or not named.keys() <= {"y", *BESIDE}:
                raise InputDataError(
                    "value must be a number, or a dict of it as 'y' and beside it at most "
                    f"{', '.join(map(repr, BESIDE))}, got a dict of {[*named]}."
                )
            return cls(End.VALUE, check_number("value", named.pop("y")), named)
        except BotorchError as no_number:
            return cls.refused(no_number)
        except Exception as unreadable:  # such as a tensor without data
            reason = f"the objective's value cannot be read: {describe(unreadable)}"
            return cls(End.FAILURE, reason=reason, error=unreadable)

    @classmethod
    def refused(cls, error: BotorchError) -> Outcome:
        """The failure of an objective that returned what cannot be recorded."""
        reason = f"the objective's {error}".replace("`", "")
        return cls(End.FAILURE, reason=reason, error=error)


def read_outcome(
    future: Future[Any], cause_of_death: Callable[[Future[Any], BaseException], str | None]
) -> Outcome:
    """The outcome of a finished future, given `Workers.cause_of_death`."""
    try:
        error = future.exception(timeout=0)
    except CancelledError as cancelled:
        return Outcome(End.LOSS, reason="its evaluation was cancelled", error=cancelled)
    if error is None:
        return Outcome.of(future.result())
    if isinstance(error, KeyboardInterrupt):
        return Outcome(End.INTERRUPT, reason=describe(error), error=error)
    cause = cause_of_death(future, error)
    if cause is not None:
        return Outcome(End.LOSS, reason=f"its worker died: {cause}", error=error)
    return Outcome(End.FAILURE, reason=describe(error), error=error)


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
