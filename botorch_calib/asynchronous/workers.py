"""`Workers`: the interface between the loop and the places where evaluations run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import EvaluationError

Objective = Callable[[np.ndarray], Any]


class Workers(ABC):
    """Runs evaluations, notices dead workers, and frees or replaces them."""

    # Whether a worker that dies takes other evaluations with it.
    shares_deaths = False

    @abstractmethod
    def prepare(self) -> None:
        """Start a worker for the next evaluation if needed, before its query is chosen."""

    @abstractmethod
    def submit(self, x: np.ndarray, alone: bool) -> Future[Any]:
        """Start an evaluation at a query ``x`` of shape ``d``.

        One that was lost before runs ``alone``: ``EvaluationError`` if workers die by themselves.
        """

    @abstractmethod
    def has_started(self, future: Future[Any]) -> bool:
        """Whether an evaluation has reached a worker, as far as known."""

    @abstractmethod
    def cause_of_death(self, future: Future[Any], error: BaseException) -> str | None:
        """How the worker of a finished evaluation died; None if ``error`` is the objective's."""

    def make_room(self, future: Future[Any], error: BaseException | None) -> None:  # noqa: B027
        """Replace workers that an evaluation was lost with, or raise ``EvaluationError``."""

    @abstractmethod
    def end(self, future: Future[Any]) -> bool:
        """Give up a late evaluation; False if its worker nevertheless continues."""

    def check(self) -> None:  # noqa: B027
        """Report losses that nothing else does; ``EvaluationError`` if nothing can run any more."""

    @abstractmethod
    def close(self, kill: bool) -> None:
        """Shut down the workers that were made here, and ``kill`` busy ones."""


def pickled(objective: Objective) -> bytes:
    """The pickled objective, or ``InputDataError``."""
    try:
        return bytes(ForkingPickler.dumps(objective))
    except Exception as error:
        raise InputDataError(
            "`objective` must be picklable to be sent to worker processes, such as a function "
            f"at the top level of a module: {error}"
        ) from error


def stillborn(error: BaseException) -> EvaluationError:
    """The error to raise if a new worker dies without an evaluation."""
    return EvaluationError(
        f"New workers die by themselves ({error}): does their initializer work, and does the main "
        "script keep what only it should do under `if __name__ == '__main__':`? The trials that "
        "were to run stay pending in the ledger."
    )
