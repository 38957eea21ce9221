"""Worker processes of our own: each in a pool for itself, so that none costs another its work."""

from __future__ import annotations

import logging
import multiprocessing
import runpy
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from botorch.exceptions.errors import InputDataError

from botorch_calib.asynchronous.worker_pools import (
    EXIT_SECONDS,
    Objective,
    PoolSupply,
    WorkerPool,
    check_picklable,
)

logger = logging.getLogger(__name__)

_PREPARATION = str(Path(__file__).with_name("worker_process.py"))


class ProcessSupply(PoolSupply):
    """Pools of one process each, which are used again, and replaced when they break.

    A process pool is lost as a whole when one of its processes dies or has to be killed. With one
    process in each, a crash or a time-out is the loss of one evaluation.

    Processes are spawned: torch runs threads, and forking a process that runs threads may deadlock.
    They leave signals to this process, and end when it has ended. What an objective has started is
    killed together with its process, but not if that ends by itself.

    Args:
        objective: The function that will run in them.
        evaluations_per_process: Number of evaluations after which a process is replaced by a new
            one, or None to keep it.

    Raises:
        InputDataError: If the objective cannot be sent to processes, or they cannot import it.
    """

    def __init__(self, objective: Objective, evaluations_per_process: int | None = None) -> None:
        _check_importable(check_picklable(objective))
        self._evaluations_per_process = evaluations_per_process
        self._num_evaluations: dict[WorkerPool, int] = {}
        self._idle: list[WorkerPool] = []
        self._closing: list[WorkerPool] = []

    def acquire(self, private: bool) -> WorkerPool:
        """An idle pool or a new one; always a new one, known to work, if ``private``."""
        if private:
            pool = self._make()
            pool.probe()
            return pool
        return self._idle.pop() if self._idle else self._make()

    def release(self, pool: WorkerPool) -> None:
        """Keep a pool for the next evaluation, or close it if it has had enough of them."""
        self._num_evaluations[pool] += 1
        if self._num_evaluations[pool] == self._evaluations_per_process:
            del self._num_evaluations[pool]
            pool.close(wait=False)
            self._closing = [each for each in self._closing if not each.has_ended(0.0)]
            self._closing.append(pool)
        else:
            self._idle.append(pool)

    def discard(self, pool: WorkerPool, error: BaseException | None) -> None:
        """Kill a pool."""
        pool.kill()
        self._num_evaluations.pop(pool, None)

    def close(self, kill: bool) -> None:
        """Shut all of them down, and kill those that do not end by themselves.

        A thread that an objective has left running, for example, keeps its process.
        """
        pools, self._num_evaluations, self._idle = list(self._num_evaluations), {}, []
        closing, self._closing = self._closing, []
        for pool in pools:
            if kill:
                pool.kill()
            else:
                pool.close(wait=False)
                closing.append(pool)
        deadline = time.monotonic() + (0.0 if kill else EXIT_SECONDS)
        for pool in closing:
            if not pool.has_ended(max(deadline - time.monotonic(), 0.0)):
                logger.warning("A worker process did not end by itself, and was killed.")
                pool.kill()

    def _make(self) -> WorkerPool:
        executor = ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=runpy.run_path,
            initargs=(_PREPARATION, None, "__main__"),
        )
        pool = WorkerPool(executor, owned=True)
        self._num_evaluations[pool] = 0
        pool.warm_up()
        return pool


def _check_importable(objective: bytes) -> None:
    """Refuse what new processes cannot import, before every trial would fail for it."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    is_stdin = file is not None and file.startswith("<")
    has_script = file is not None or getattr(main, "__spec__", None) is not None
    if is_stdin or (not has_script and b"__main__" in objective):
        raise InputDataError(
            "`objective` has to be imported by worker processes, and a notebook, `python -c` and "
            "the standard input cannot be: put it into a file of its own, and import it."
            + " The program itself has to be a file as well."
            * is_stdin
        )
