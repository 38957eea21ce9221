"""Dask workers: notices when the cluster is lost, and ends late evaluations."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Executor, Future
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import numpy as np

from botorch_calib.asynchronous.evaluation_outcomes import describe
from botorch_calib.asynchronous.workers import Objective, Workers
from botorch_calib.exceptions import EvaluationError

logger = logging.getLogger(__name__)

# Seconds for the scheduler to learn that a task is cancelled.
CANCEL_SECONDS = 5.0

# Seconds between two questions to the scheduler whether there are workers.
CHECK_SECONDS = 5.0


def is_dask(executor: Executor) -> bool:
    """Whether it is a ``client.get_executor()``, without importing Dask."""
    return type(executor).__module__.partition(".")[0] == "distributed"


class DaskWorkers(Workers):
    """The workers behind Dask's executor; Dask replaces dead ones, and repeats their tasks.

    When a task is cancelled, the scheduler forgets it, but its thread continues, and further tasks
    that are sent to this worker wait until they time out as well. So a late task is cancelled only
    together with its worker, if workers may be restarted.
    """

    def __init__(
        self,
        executor: Executor,
        objective: Objective,
        may_restart: bool,
        longest_without_workers: float | None,
    ) -> None:
        self._executor = executor
        self._client: Any = executor._client  # type: ignore[attr-defined]
        self._objective = objective
        self._may_restart = may_restart
        self._longest = longest_without_workers
        self._last_seen = self._last_look = time.monotonic()
        # Weak: while there is a reference to a finished future, Dask evaluates it again if the
        # worker that holds its result dies.
        self._keys: WeakKeyDictionary[Future[Any], str] = WeakKeyDictionary()

    def prepare(self) -> None:
        """Raise ``EvaluationError`` if the scheduler or the client is gone.

        Dask cancels all tasks of a client that loses its scheduler, even if it finds it again.
        """
        if self._client.status != "running":
            raise EvaluationError(
                "The Dask client has lost its scheduler or was closed (it is "
                f"{self._client.status}). Trials that were running stay pending in the ledger: "
                "connect, and run again."
            )

    def check(self) -> None:
        """Raise ``EvaluationError`` if the scheduler, the client or all workers are gone."""
        self.prepare()
        now = time.monotonic()
        if self._longest is None or now - self._last_look < CHECK_SECONDS:
            return
        self._last_look = now
        if self._client.nthreads():
            self._last_seen = now
        elif now - self._last_seen > self._longest:
            raise EvaluationError(
                f"The Dask cluster has had no workers for {now - self._last_seen:.0f} seconds (see "
                "`EvaluationLimits.longest_without_workers`). Trials that were running stay "
                "pending in the ledger: start workers, and run again."
            )

    def submit(self, x: np.ndarray, alone: bool) -> Future[Any]:
        self.prepare()
        # By default Dask derives a task's key from its arguments, and a second evaluation at the
        # same query would return the value of the first.
        key = f"evaluation-{uuid4().hex}"
        future = self._executor.submit(self._objective, x, key=key)  # type: ignore[call-arg]
        self._keys[future] = key
        return future

    def has_started(self, future: Future[Any]) -> bool:
        """True, as it is not known."""
        return True

    def cause_of_death(self, future: Future[Any], error: BaseException) -> str | None:
        """The text of ``KilledWorker``: several workers (by default four) died with the task."""
        is_death = any(
            kind.__name__ == "KilledWorker" and kind.__module__.startswith("distributed.")
            for kind in type(error).__mro__
        )
        return describe(error) if is_death else None

    def make_room(self, future: Future[Any], error: BaseException | None) -> None:
        """Raise ``EvaluationError`` if the scheduler has just been lost."""
        self.prepare()

    def end(self, future: Future[Any]) -> bool:
        """Give up an evaluation by restarting its worker, whose other tasks Dask repeats."""
        if future.done() or not self._may_restart:
            return future.done()
        key = self._keys[future]
        busy = self._workers_with(key)
        future.cancel()
        # They reach the scheduler by different ways. If the restart came first, Dask would take the
        # task for a lost one and run it again elsewhere.
        deadline = time.monotonic() + CANCEL_SECONDS
        while self._workers_with(key) and time.monotonic() < deadline:
            time.sleep(0.01)
        try:
            self._client.restart_workers(busy)
        except Exception as error:
            logger.warning("Dask could not restart %s: %s", ", ".join(busy), error)
        return True

    def close(self, kill: bool) -> None:
        """Make Dask forget tasks that it would run again if a worker died."""
        for future in list(self._keys):
            future.cancel()
        if self._may_restart:
            self._executor.shutdown(wait=False)

    def _workers_with(self, key: str) -> list[str]:
        processing = self._client.processing()
        return [address for address, keys in processing.items() if key in keys]
