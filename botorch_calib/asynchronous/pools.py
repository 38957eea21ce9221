"""Executors and their workers: who owns them, how they are freed and how they are replaced."""

from __future__ import annotations

import logging
import os
import time
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

# Seconds for the thread of a process pool whose processes have died to notice that.
GRACE = 5.0

# Seconds for Dask's scheduler to learn that a task is cancelled.
CANCEL_SECONDS = 5.0

# Seconds between two looks at something that is awaited.
POLL_SECONDS = 0.01

ExecutorFactory = Callable[[], Executor]


class WorkerPool:
    """One executor, and what can be done with its workers.

    The standard executors have no public access to their workers, so this reads their attributes
    ``_processes``, ``_max_workers``, ``_broken``, ``_executor_manager_thread`` and
    ``_result_queue``. Executors without them are taken to have workers enough, none of which
    can be killed.

    Args:
        executor: Where evaluations run.
        owned: Whether nobody else uses the executor, so that it may be killed and is closed here.
    """

    def __init__(self, executor: Executor, owned: bool) -> None:
        self.executor = executor
        self.owned = owned
        self.is_killed = False
        self._futures: list[Future[Any]] = []

    def submit(self, objective: Callable[[np.ndarray], Any], x: np.ndarray) -> Future[Any]:
        """Have ``objective(x)`` evaluated; ``BrokenExecutor`` if the workers are gone."""
        try:
            future = self.executor.submit(objective, x)
        except OSError as error:
            # A process pool that breaks at this very moment closes the pipes which it needs to
            # start a process, before or after it says that it is broken.
            if not self._is_breaking():
                raise
            raise BrokenExecutor(f"The process pool broke: {error}") from error
        self._futures = [*self._unfinished(), future]
        return future

    def _is_breaking(self) -> bool:
        """Whether a process pool is broken, or soon will be."""
        return self.has_processes and _wait_for(lambda: self.is_broken, GRACE)

    def has_started(self, future: Future[Any]) -> bool:
        """Whether an evaluation that was submitted here has, as far as known, reached a worker.

        A process pool reports what waits in its queue as running, so its workers are counted as
        well. Executors that do not tell their number of workers may not report either.
        """
        workers = getattr(self.executor, "_max_workers", None)
        if workers is None:
            return True
        return future.running() and future in self._unfinished()[:workers]

    def _unfinished(self) -> list[Future[Any]]:
        return [future for future in self._futures if not future.done()]

    @property
    def is_broken(self) -> bool:
        """Whether the executor is of no more use; True if it does not say."""
        return bool(getattr(self.executor, "_broken", True))

    @property
    def is_killable(self) -> bool:
        """Whether busy workers can be freed, by killing all of them."""
        return self.owned and self.has_processes

    @property
    def has_processes(self) -> bool:
        """Whether the executor is a process pool, or one that keeps its processes as those do."""
        return hasattr(self.executor, "_processes")

    def probe(self) -> None:
        """Raise ``EvaluationError`` if workers die before they are given anything to evaluate."""
        try:
            self.executor.submit(os.getpid).result()
        except BrokenExecutor as error:
            raise EvaluationError(
                f"The workers of a new executor die by themselves ({error}): does its initializer "
                "work, and does the main script keep what only it should do under `if __name__ == "
                "'__main__':`? The trials that were to run stay pending in the ledger."
            ) from error

    def confine(self) -> None:
        """Have a process pool that has not started yet start one process only."""
        if self.has_processes and hasattr(self.executor, "_max_workers"):
            self.executor._max_workers = 1

    def free(self, future: Future[Any]) -> bool:
        """Give an evaluation up; False if its worker goes on with it nevertheless."""
        return future.cancel() or future.done()

    def kill(self) -> None:
        """End the processes at once. Evaluations that have not finished are lost."""
        self.is_killed = True
        processes = list((getattr(self.executor, "_processes", None) or {}).values())
        for process in processes:
            process.kill()
        for process in processes:
            process.join()
        # Of a process that was killed while it sent a long result, the executor's thread awaits
        # the rest for as long as anybody could send it: this process, and forked ones of others.
        thread = getattr(self.executor, "_executor_manager_thread", None)
        results: Any = getattr(self.executor, "_result_queue", None)
        if hasattr(results, "_writer"):
            results._writer.close()
        self.executor.shutdown(wait=thread is None)
        if thread is not None:
            thread.join(GRACE)

    def close(self, wait: bool) -> None:
        """Shut the executor down, waiting for what runs in it or not."""
        self.executor.shutdown(wait=wait)


class DaskPool(WorkerPool):
    """Dask's executor, ``client.get_executor()``, without importing Dask.

    Dask runs tasks in threads of its workers. Cancelling one makes the scheduler forget it, but
    its thread goes on, and the scheduler sends it further tasks, which wait until they are too
    late themselves. So a task is cancelled only together with its worker, and if the executor is
    made by a function, which says that its workers may be killed.
    """

    def __init__(self, executor: Executor, owned: bool) -> None:
        super().__init__(executor, owned)
        self._keys: WeakKeyDictionary[Future[Any], str] = WeakKeyDictionary()

    def submit(self, objective: Callable[[np.ndarray], Any], x: np.ndarray) -> Future[Any]:
        """See `WorkerPool`."""
        # Named by its arguments, as Dask does it, a second evaluation at the same query would be
        # answered with the value of the first.
        key = f"evaluation-{uuid4().hex}"
        future = self.executor.submit(objective, x, key=key)  # type: ignore[call-arg]
        self._keys[future] = key
        return future

    @property
    def is_broken(self) -> bool:
        """False: Dask replaces its workers, so only objectives raise ``BrokenExecutor``."""
        return False

    def free(self, future: Future[Any]) -> bool:
        """See `WorkerPool`; restarts the worker, whose other tasks Dask then runs again."""
        if future.done() or not self.owned:
            return future.done()
        client, key = self.executor._client, self._keys[future]  # type: ignore[attr-defined]
        busy = _workers_with(client, key)
        future.cancel()
        # The news of it takes another way than the restart. If it came later, Dask would take the
        # task for a lost one, and run it again elsewhere.
        _wait_for(lambda: not _workers_with(client, key), CANCEL_SECONDS)
        try:
            client.restart_workers(busy)
        except Exception as error:
            logger.warning("Dask could not restart %s: %s", ", ".join(busy), error)
        return True


def _wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait until the condition holds, but no longer than some seconds; whether it does."""
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return holds


def _workers_with(client: Any, key: str) -> list[str]:
    """Addresses of the workers that a task has been given to."""
    return [address for address, keys in client.processing().items() if key in keys]


def make_pool(executor: Executor, owned: bool) -> WorkerPool:
    """The pool of an executor; see `WorkerPool`."""
    is_dask = type(executor).__module__.partition(".")[0] == "distributed"
    return DaskPool(executor, owned) if is_dask else WorkerPool(executor, owned)


class PoolSupply:
    """Gives evaluations an executor to run in, and makes executors if it can.

    Args:
        executor: An executor, which is left as it is; or a function that makes one, called
            anew whenever a fresh one is needed.
        objective: What will run in it.

    Raises:
        InputDataError: On first use, if the function makes no executor or always the same one,
            or the objective cannot be sent to worker processes.
    """

    def __init__(
        self, executor: Executor | ExecutorFactory, objective: Callable[[np.ndarray], Any]
    ) -> None:
        self._factory = None if isinstance(executor, Executor) else executor
        self._objective = objective
        self._shared = make_pool(executor, owned=False) if isinstance(executor, Executor) else None
        self._private: set[WorkerPool] = set()
        self._last: Executor | None = None
        self._is_checked = False

    def acquire(self, private: bool) -> WorkerPool:
        """The pool to run an evaluation in.

        Args:
            private: Whether it should run apart from others if that is possible, because it
                may have killed its worker. Only evaluations of the same pool die together.
        """
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

    def release(self, pool: WorkerPool, wait: bool = True) -> None:
        """Take back a pool whose evaluation has finished; a private one is closed."""
        if pool in self._private:
            self._private.remove(pool)
            pool.close(wait)

    def discard(self, pool: WorkerPool, error: BaseException | None) -> None:
        """Kill a pool for good; what has not finished by then never brings a value.

        Args:
            pool: The pool.
            error: What it said when it broke, if it did.

        Raises:
            EvaluationError: If the pool's executor is not ours to replace.
        """
        if not pool.owned:
            raise EvaluationError(
                f"The `executor` is broken ({error}) and cannot be replaced: pass a function that "
                "makes one instead. The trials that ran in it stay pending in the ledger."
            ) from error
        pool.kill()
        self._private.discard(pool)
        self._shared = None if pool is self._shared else self._shared

    def close(self, wait: bool, kill: bool) -> None:
        """Shut down all executors made here.

        Args:
            wait: Whether to wait for evaluations that nothing can end, such as threads.
            kill: Whether to end processes that are still busy.
        """
        pools = [*self._private, *([self._shared] if self._shared else [])]
        self._private, self._shared = set(), None
        for pool in pools:
            if pool.owned and kill and pool.is_killable:
                pool.kill()
            elif pool.owned:
                pool.close(wait)

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
        """Refuse at once, and once only, what would fail in every evaluation."""
        # Other executors of processes may pickle more than the standard library can.
        if self._is_checked or not isinstance(pool.executor, ProcessPoolExecutor):
            return
        try:
            ForkingPickler.dumps(self._objective)
        except Exception as error:
            raise InputDataError(
                "`objective` must be picklable to be sent to worker processes, such as a function "
                f"at the top level of a module: {error}"
            ) from error
        self._is_checked = True
