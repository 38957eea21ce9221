"""Executors and their workers: whether they are alive, and how they are freed and replaced."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from multiprocessing.reduction import ForkingPickler
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary

import numpy as np
from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import EvaluationError

logger = logging.getLogger(__name__)

# Seconds for a process pool's thread to notice that the processes have died.
GRACE = 5.0

# Seconds for idle processes to end by themselves, with what was registered for their exit.
EXIT_SECONDS = 30.0

# Seconds for Dask's scheduler to learn that a task is cancelled.
CANCEL_SECONDS = 5.0

# Seconds between two questions to Dask's scheduler whether there are workers.
WORKER_CHECK_SECONDS = 5.0

# Seconds between two checks of a condition that is awaited.
POLL_SECONDS = 0.01

Objective = Callable[[np.ndarray], Any]
ExecutorFactory = Callable[[], Executor]


class WorkerPool:
    """An executor, with access to its workers.

    The standard executors have no public access to their workers, so this reads their attributes
    ``_processes``, ``_max_workers``, ``_broken``, ``_executor_manager_thread`` and
    ``_result_queue``. An executor without them is taken to have enough workers, which cannot be
    killed.

    Args:
        executor: Where evaluations run.
        owned: Whether the executor was made here, so that it may be killed and has to be closed.
    """

    def __init__(self, executor: Executor, owned: bool) -> None:
        self.executor = executor
        self.owned = owned
        self.is_killed = False
        self._futures: list[Future[Any]] = []
        # What a process pool forgets once it is shut down.
        self._thread: Any = None
        self._processes: list[Any] = []

    def submit(self, objective: Objective, x: np.ndarray) -> Future[Any]:
        """Start ``objective(x)``; raises ``BrokenExecutor`` if the workers are dead."""
        try:
            future = self.executor.submit(objective, x)
        except OSError as error:
            # A process pool that is just breaking closes the pipes that it needs to start a
            # process, either before or after it reports that it is broken.
            if not self._is_breaking():
                raise
            raise BrokenExecutor(f"The process pool broke: {error}") from error
        self._futures = [*self._unfinished(), future]
        return future

    def _is_breaking(self) -> bool:
        """Whether a process pool is broken or about to break."""
        return self.has_processes and _wait_for(lambda: self.is_broken, GRACE)

    def has_started(self, future: Future[Any]) -> bool:
        """Whether an evaluation that was submitted here has reached a worker, as far as known.

        A process pool reports evaluations in its queue as running. So an evaluation has started
        only if, in addition, fewer earlier ones are unfinished than there are workers. Executors
        with an unknown number of workers may not report anything: for these the result is True.
        """
        workers = getattr(self.executor, "_max_workers", None)
        if workers is None:
            return True
        return future.running() and future in self._unfinished()[:workers]

    def _unfinished(self) -> list[Future[Any]]:
        return [future for future in self._futures if not future.done()]

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation has not finished, such as one that is late and cannot be ended."""
        return bool(self._unfinished())

    @property
    def is_broken(self) -> bool:
        """Whether the executor can run nothing any more; True if it does not report this."""
        return bool(getattr(self.executor, "_broken", True))

    def worker_died(self, error: BaseException) -> bool:
        """Whether an evaluation ended with ``error`` because its worker died.

        A broken executor reports ``BrokenExecutor`` for all its evaluations. If it is not broken,
        the objective has used, and broken, an executor of its own: an ordinary failure. Dask
        reports ``KilledWorker`` once a task was on several workers that died, by default four.
        """
        return (isinstance(error, BrokenExecutor) and self.is_broken) or _is_killed_worker(error)

    @property
    def is_killable(self) -> bool:
        """Whether busy workers can be freed, by killing all of them."""
        return self.owned and self.has_processes

    @property
    def has_processes(self) -> bool:
        """Whether the executor is a process pool, or stores its processes in the same way."""
        return hasattr(self.executor, "_processes")

    def check(self, longest_without_workers: float | None) -> None:
        """Raise ``EvaluationError`` if nothing will run here any more, as far as this is known.

        Args:
            longest_without_workers: Seconds for which a cluster may be without any worker.
        """

    def warm_up(self) -> None:
        """Start a process, if there is none: its start is no part of an evaluation's time."""
        self._futures.append(self.executor.submit(os.getpid))

    def probe(self) -> None:
        """Raise ``EvaluationError`` if the workers die even without an evaluation."""
        try:
            self.executor.submit(os.getpid).result()
        except BrokenExecutor as error:
            raise EvaluationError(
                f"The workers of a new executor die by themselves ({error}): does its initializer "
                "work, and does the main script keep what only it should do under `if __name__ == "
                "'__main__':`? The trials that were to run stay pending in the ledger."
            ) from error

    def confine(self) -> None:
        """Limit a process pool that has not started yet to one process."""
        if self.has_processes and hasattr(self.executor, "_max_workers"):
            self.executor._max_workers = 1

    def free(self, future: Future[Any]) -> bool:
        """Give up an evaluation; False if its worker nevertheless continues."""
        return future.cancel() or future.done()

    def kill(self) -> None:
        """End the processes at once. Evaluations that have not finished are lost.

        What they have started ends as well if they lead groups of processes, as those of
        `ProcessSupply` do.
        """
        self.is_killed = True
        self._remember()
        for process in self._processes:
            _kill_group(process)
            process.kill()
        for process in self._processes:
            process.join()
        # If a process was killed while it sent a long result, the executor's thread waits for the
        # rest as long as any process has the pipe open for writing. This process does.
        results: Any = getattr(self.executor, "_result_queue", None)
        if hasattr(results, "_writer"):
            results._writer.close()
        self.executor.shutdown(wait=self._thread is None)
        if self._thread is not None:
            self._thread.join(GRACE)

    def close(self, wait: bool) -> None:
        """Shut the executor down, and optionally wait for what runs in it."""
        self._remember()
        self.executor.shutdown(wait=wait)

    def has_ended(self, seconds: float) -> bool:
        """Whether the processes of a pool that was closed end within a number of seconds."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self._thread is None or not self._thread.is_alive()

    def _remember(self) -> None:
        self._thread = getattr(self.executor, "_executor_manager_thread", None) or self._thread
        processes = getattr(self.executor, "_processes", None)
        self._processes = list(processes.values()) if processes else self._processes


class DaskPool(WorkerPool):
    """Dask's executor, ``client.get_executor()``, without importing Dask.

    Dask runs tasks in threads of its workers. If a task is cancelled, the scheduler forgets it, but
    its thread continues. The scheduler then sends further tasks to this worker, where they wait
    until they time out as well. So a task is cancelled only together with its worker, and only
    if a function makes the executor, which permits killing its workers.
    """

    def __init__(self, executor: Executor, owned: bool) -> None:
        super().__init__(executor, owned)
        self._keys: WeakKeyDictionary[Future[Any], str] = WeakKeyDictionary()
        self._last_seen = self._last_look = time.monotonic()

    def check(self, longest_without_workers: float | None) -> None:
        """Raise ``EvaluationError`` if the scheduler, the client or all workers are gone.

        Dask cancels all tasks of a client that loses its scheduler, also if it finds it again. They
        are no failures: the run ends, and all that was running stays pending in the ledger.
        """
        client = self.executor._client  # type: ignore[attr-defined]
        if client.status != "running":
            raise EvaluationError(
                f"The Dask client has lost its scheduler or was closed (it is {client.status}). "
                "Trials that were running stay pending in the ledger: connect, and run again."
            )
        now = time.monotonic()
        if longest_without_workers is None or now - self._last_look < WORKER_CHECK_SECONDS:
            return
        self._last_look = now
        if client.nthreads():
            self._last_seen = now
        elif now - self._last_seen > longest_without_workers:
            raise EvaluationError(
                f"The Dask cluster has had no workers for {now - self._last_seen:.0f} seconds (see "
                "`EvaluationLimits.longest_without_workers`). Trials that were running stay "
                "pending in the ledger: start workers, and run again."
            )

    def submit(self, objective: Objective, x: np.ndarray) -> Future[Any]:
        """Start ``objective(x)``."""
        self.check(None)
        # By default Dask derives a task's key from its arguments. A second evaluation at the same
        # query would then return the value of the first.
        key = f"evaluation-{uuid4().hex}"
        future = self.executor.submit(objective, x, key=key)  # type: ignore[call-arg]
        self._keys[future] = key
        return future

    @property
    def is_broken(self) -> bool:
        """False, as Dask replaces its workers: a ``BrokenExecutor`` comes from the objective."""
        return False

    def free(self, future: Future[Any]) -> bool:
        """Give up an evaluation by restarting its worker, whose other tasks Dask runs again."""
        if future.done() or not self.owned:
            return future.done()
        client, key = self.executor._client, self._keys[future]  # type: ignore[attr-defined]
        busy = _workers_with(client, key)
        future.cancel()
        # The cancellation and the restart reach the scheduler by different ways. If the restart
        # came first, Dask would take the task for a lost one and run it again elsewhere.
        _wait_for(lambda: not _workers_with(client, key), CANCEL_SECONDS)
        try:
            client.restart_workers(busy)
        except Exception as error:
            logger.warning("Dask could not restart %s: %s", ", ".join(busy), error)
        return True


def _wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds, for a number of seconds at most; whether it holds."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return holds


def _kill_group(process: Any) -> None:
    """Kill the group of processes that a process leads or, if it has ended, has led."""
    if not hasattr(os, "killpg"):
        return
    # The number of a process is not given again as long as its group has members. So if it has
    # been, the group is not this one.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if process.exitcode is not None:
            try:
                os.kill(process.pid, 0)
                return
            except ProcessLookupError:
                pass
        os.killpg(process.pid, signal.SIGKILL)


def _workers_with(client: Any, key: str) -> list[str]:
    """Addresses of the workers that have a task."""
    return [address for address, keys in client.processing().items() if key in keys]


def make_pool(executor: Executor, owned: bool) -> WorkerPool:
    """The `WorkerPool` for an executor, a `DaskPool` for Dask's."""
    is_dask = type(executor).__module__.partition(".")[0] == "distributed"
    return DaskPool(executor, owned) if is_dask else WorkerPool(executor, owned)


def _is_killed_worker(error: BaseException) -> bool:
    """Whether this is Dask's ``KilledWorker``, recognized by its name since Dask is optional."""
    return any(
        kind.__name__ == "KilledWorker" and kind.__module__.startswith("distributed.")
        for kind in type(error).__mro__
    )


class PoolSupply(ABC):
    """Provides the pools in which evaluations run."""

    @abstractmethod
    def acquire(self, private: bool) -> WorkerPool:
        """The pool in which to run an evaluation.

        Args:
            private: Whether the evaluation gets a pool of its own, if possible, because it may have
                killed its worker: evaluations that share a pool are lost together.
        """

    @abstractmethod
    def release(self, pool: WorkerPool) -> None:
        """Take back a pool whose evaluation has finished."""

    @abstractmethod
    def discard(self, pool: WorkerPool, error: BaseException | None) -> None:
        """Kill a pool; evaluations that have not finished by then are lost.

        Args:
            pool: The pool.
            error: The exception with which it broke, or None if it is intact.

        Raises:
            EvaluationError: If the executor was not made here, so that it cannot be replaced.
        """

    @abstractmethod
    def close(self, kill: bool) -> None:
        """Shut down all executors made here; late evaluations in threads are not waited for.

        Args:
            kill: Whether to kill processes that are still busy.
        """


class ExecutorSupply(PoolSupply):
    """Pools of the caller's executors: one for all evaluations, and private ones.

    Args:
        executor: An executor, which is never closed here; or a function that makes one, called
            whenever a new one is needed.
        objective: The function that will run in it.

    Raises:
        InputDataError: On first use, if the function makes no executor or always the same one,
            or the objective cannot be sent to worker processes.
    """

    def __init__(self, executor: Executor | ExecutorFactory, objective: Objective) -> None:
        self._factory = None if isinstance(executor, Executor) else executor
        self._objective = objective
        self._shared = make_pool(executor, owned=False) if isinstance(executor, Executor) else None
        self._private: set[WorkerPool] = set()
        self._last: Executor | None = None
        self._is_checked = False

    def acquire(self, private: bool) -> WorkerPool:
        """The shared pool, or a private one if a function makes executors."""
        if private and self._factory is not None:
            pool = self._make()
            pool.confine()
            self._private.add(pool)
            pool.probe()
            return pool
        if self._shared is None:
            self._shared = self._make()
        self._check_objective(self._shared)
        return self._shared

    def release(self, pool: WorkerPool) -> None:
        """Take back a pool whose evaluation has finished; a private one is closed."""
        if pool in self._private:
            self._private.remove(pool)
            pool.close(wait=not pool.is_busy)

    def discard(self, pool: WorkerPool, error: BaseException | None) -> None:
        """Kill a pool that was made here; an ``EvaluationError`` for others."""
        if not pool.owned:
            raise EvaluationError(
                f"The `executor` is broken ({error}) and cannot be replaced: pass a function that "
                "makes one instead. The trials that ran in it stay pending in the ledger."
            ) from error
        pool.kill()
        self._private.discard(pool)
        self._shared = None if pool is self._shared else self._shared

    def close(self, kill: bool) -> None:
        """Shut down all executors made here."""
        pools = [*self._private, *([self._shared] if self._shared else [])]
        self._private, self._shared = set(), None
        for pool in pools:
            if pool.owned and kill and pool.is_killable:
                pool.kill()
            elif pool.owned:
                pool.close(wait=not kill and not pool.is_busy)

    def _make(self) -> WorkerPool:
        assert self._factory is not None
        executor = self._factory()
        if not isinstance(executor, Executor):
            raise InputDataError(
                "`executor` must be a concurrent.futures.Executor or make one, but it made a "
                f"{type(executor).__name__}."
            )
        if executor is self._last:
            raise InputDataError("`executor` must make a new executor each time it is called.")
        self._last = executor
        return make_pool(executor, owned=True)

    def _check_objective(self, pool: WorkerPool) -> None:
        """Refuse an objective that no process pool could evaluate; checked once."""
        # Executors of other libraries may be able to pickle more.
        if not self._is_checked and isinstance(pool.executor, ProcessPoolExecutor):
            check_picklable(self._objective)
            self._is_checked = True


def check_picklable(objective: Objective) -> bytes:
    """The pickled objective, or ``InputDataError`` if no worker processes can be sent it."""
    try:
        return bytes(ForkingPickler.dumps(objective))
    except Exception as error:
        raise InputDataError(
            "`objective` must be picklable to be sent to worker processes, such as a function "
            f"at the top level of a module: {error}"
        ) from error
