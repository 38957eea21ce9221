"""The caller's executors: threads, process pools and others. A broken one is replaced."""

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
    """An executor and those that ``make`` makes when it breaks; without it, it is never closed.

    Standard executors do not publish their workers, so this reads the attributes ``_processes``,
    ``_max_workers``, ``_broken`` and ``_mp_context``.
    """

    shares_deaths = True

    def __init__(
        self, executor: Executor, make: ExecutorFactory | None, objective: Objective
    ) -> None:
        self._executor = executor
        self._is_broken = False
        self._make = make
        self._objective = objective
        # Where each evaluation runs, in order of submission.
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
                self._executors[future] = self._executor
                return future
        raise EvaluationError(f"A new executor broke at once: {broken}") from broken

    def has_started(self, future: Future[Any]) -> bool:
        """Whether a worker has started it, as far as known.

        A process pool reports queued evaluations as running, so fewer earlier ones must be
        unfinished than there are workers. If their number is unknown, the result is True.
        """
        workers = getattr(self._executors[future], "_max_workers", None)
        return workers is None or (future.running() and future in self._unfinished()[:workers])

    def cause_of_death(self, future: Future[Any], error: BaseException) -> str | None:
        """The error of a broken executor; None if the objective has broken one of its own."""
        is_broken = getattr(self._executors[future], "_broken", True)
        return describe(error) if isinstance(error, BrokenExecutor) and is_broken else None

    def make_room(self, future: Future[Any], error: BaseException | None) -> None:
        if isinstance(error, BrokenExecutor) and self._executors[future] is self._executor:
            self._discard(error)

    def end(self, future: Future[Any]) -> bool:
        """Give up an evaluation that has not started; others cannot be interrupted."""
        return future.cancel() or future.done()

    def close(self, kill: bool) -> None:
        """Cancel evaluations that have not started, and shut down an executor made here."""
        for future in self._unfinished():
            future.cancel()
        if self._make is None:
            return
        is_busy = bool(self._unfinished())
        if (kill or is_busy) and _kill_processes(self._executor):
            is_busy = False
        self._executor.shutdown(wait=not is_busy)

    def _unfinished(self) -> list[Future[Any]]:
        return [future for future in self._executors if not future.done()]

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
    """The executor that the caller's function makes."""
    executor = make()
    if not isinstance(executor, Executor):
        raise InputDataError(
            "`executor` must be a concurrent.futures.Executor or make one, but it made a "
            f"{type(executor).__name__}."
        )
    return executor


def _kill_processes(executor: Executor) -> bool:
    """Kill the processes of an executor that stores them like a process pool, if there are any."""
    processes = list((getattr(executor, "_processes", None) or {}).values())
    for process in processes:
        process.kill()
    for process in processes:
        process.join()
    return bool(processes)


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
