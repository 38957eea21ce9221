"""The caller's executors: threads, process pools, others. A broken one is noticed and replaced."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from botorch.exceptions.errors import InputDataError

from botorch_calib.asynchronous.evaluation_outcomes import describe
from botorch_calib.asynchronous.workers import Objective, Workers, pickled, stillborn
from botorch_calib.exceptions import EvaluationError, EvaluationWarning

ExecutorFactory = Callable[[], Executor]


class CallersExecutors(Workers):
    """An executor and, if a function makes them, others that replace it when it breaks.

    The standard executors have no public access to their workers, so this reads their attributes
    ``_processes``, ``_max_workers``, ``_broken`` and ``_mp_context``.

    Args:
        executor: The first executor.
        make: A function that makes others; None if ``executor`` is the caller's own, which is
            never closed here.
        objective: The function that will run in it.

    Raises:
        InputDataError: If the objective cannot be sent to worker processes.

    Warns:
        EvaluationWarning: If the executor forks its processes.
    """

    shares_deaths = True

    def __init__(
        self, executor: Executor, make: ExecutorFactory | None, objective: Objective
    ) -> None:
        self._executor = executor
        self._is_broken = False
        self._make = make
        self._objective = objective
        self._futures: list[Future[Any]] = []
        self._executors: WeakKeyDictionary[Future[Any], Executor] = WeakKeyDictionary()
        _warn_of_forks(executor)
        # Executors of other libraries may be able to pickle more.
        if isinstance(executor, ProcessPoolExecutor):
            try:
                pickled(objective)
            except InputDataError:
                self.close(kill=True)
                raise

    def prepare(self) -> None:
        """Make an executor, if the last one broke."""
        if self._is_broken and self._make is not None:
            executor = made_by(self._make)
            if executor is self._executor:
                raise InputDataError("`executor` must make a new executor each time it is called.")
            self._executor, self._is_broken = executor, False

    def submit(self, x: np.ndarray, alone: bool) -> Future[Any]:
        """Start an evaluation or, if ``alone``, do so in an executor that is known to work."""
        for _ in range(2):
            self.prepare()
            try:
                if alone and self._make is not None:
                    self._executor.submit(os.getpid).result()
            except BrokenExecutor as error:
                raise stillborn(error) from error
            try:
                future = self._executor.submit(self._objective, x)
            # A process pool that breaks closes the pipes that it needs to start a process.
            except (BrokenExecutor, OSError) as error:
                broken = error
                self._discard(error)
            else:
                self._futures = [*self._unfinished(), future]
                self._executors[future] = self._executor
                return future
        raise EvaluationError(f"A new executor broke at once: {broken}") from broken

    def has_started(self, future: Future[Any]) -> bool:
        """Whether an evaluation has reached a worker, as far as known.

        A process pool reports evaluations in its queue as running. So an evaluation has started
        only if, in addition, fewer earlier ones are unfinished than there are workers. Executors
        with an unknown number of workers may not report anything: for these the result is True.
        """
        workers = getattr(self._executors[future], "_max_workers", None)
        return workers is None or (future.running() and future in self._unfinished()[:workers])

    def cause_of_death(self, future: Future[Any], error: BaseException) -> str | None:
        """What a broken executor says, of all that ran in it.

        If it is not broken, the objective has used, and broken, an executor of its own: an ordinary
        failure.
        """
        is_broken = getattr(self._executors[future], "_broken", True)
        return describe(error) if isinstance(error, BrokenExecutor) and is_broken else None

    def make_room(self, future: Future[Any], error: BaseException | None) -> None:
        """Part with an executor that broke."""
        if isinstance(error, BrokenExecutor) and self._executors[future] is self._executor:
            self._discard(error)

    def end(self, future: Future[Any]) -> bool:
        """Give up an evaluation that has not started; no other one can be interrupted."""
        return future.cancel() or future.done()

    def close(self, kill: bool) -> None:
        """Shut down what was made here, its processes too, and cancel what has not started."""
        for future in self._unfinished():
            future.cancel()
        if self._make is None:
            return
        left = self._unfinished()
        if kill or left:
            _kill_processes(self._executor)
        self._executor.shutdown(wait=not left)

    def _unfinished(self) -> list[Future[Any]]:
        return [future for future in self._futures if not future.done()]

    def _discard(self, error: BaseException) -> None:
        if self._make is None:
            raise EvaluationError(
                f"The `executor` is broken ({error}) and cannot be replaced: give a number of "
                "`workers` instead, or a function that makes an executor. The trials that ran in "
                "it stay pending in the ledger."
            ) from error
        self._is_broken = True
        _kill_processes(self._executor)
        self._executor.shutdown()


def made_by(make: ExecutorFactory) -> Executor:
    """What the caller's function makes, if that is an executor."""
    executor = make()
    if not isinstance(executor, Executor):
        raise InputDataError(
            "`executor` must be a concurrent.futures.Executor or make one, but it made a "
            f"{type(executor).__name__}."
        )
    return executor


def _kill_processes(executor: Executor) -> None:
    """Kill the processes of a process pool, or of what stores them in the same way."""
    processes = list((getattr(executor, "_processes", None) or {}).values())
    for process in processes:
        process.kill()
    for process in processes:
        process.join()


def _warn_of_forks(executor: Executor) -> None:
    context = getattr(executor, "_mp_context", None)
    if context is not None and context.get_start_method() == "fork":
        warnings.warn(
            "The `executor` forks its processes. As torch runs threads here, an objective that "
            "uses torch may hang in them without a word: give a number of `workers` instead, or "
            "make the executor with mp_context=multiprocessing.get_context('spawn').",
            EvaluationWarning,
            stacklevel=5,  # where `run` is called
        )
