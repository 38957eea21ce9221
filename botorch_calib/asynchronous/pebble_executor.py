"""`PebbleExecutor`: an executor that runs calls in processes, with a time limit for each call."""

from __future__ import annotations

import os
import runpy
import signal
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import suppress
from multiprocessing.context import SpawnContext, SpawnProcess
from pathlib import Path
from typing import Any

from pebble import ProcessPool

from botorch_calib._validation import check_positive

_START = str(Path(__file__).with_name("worker_start.py"))


class PebbleExecutor(Executor):
    """Pebble's ``ProcessPool`` as a ``concurrent.futures`` executor, with a time limit per call.

    If a process dies, or exceeds the time limit and is killed, only its call is lost: the call's
    future raises an error, and the process is replaced. Processes are spawned, since torch's
    threads may deadlock forked processes. When a process ends, the programs that it has started are
    killed, except on Windows and except for programs that have begun a session of their own.

    Args:
        max_workers: Number of processes.
        timeout: Time limit of each call in seconds, from the start in a process (None: no limit).
        pool: Further arguments of Pebble's ``ProcessPool``, such as ``initializer``, or
            ``max_tasks=1`` for a new process per call.

    Example:
        >>> make = partial(PebbleExecutor, 4, timeout=60.0)  # for `AsynchronousOptimizer`
    """

    def __init__(self, max_workers: int, timeout: float | None = None, **pool: Any) -> None:
        self._timeout = None if timeout is None else check_positive("timeout", timeout)
        own = {"INITIALIZER": (pool.pop("initializer", None), pool.pop("initargs", ()))}
        start = {"initializer": runpy.run_path, "initargs": (_START, own)}
        context = _Spawn() if pool.get("max_tasks") else _SpawnForGood()
        self._pool = ProcessPool(max_workers, **{"context": context, **pool, **start})
        self._open: set[Future[Any]] = set()

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Schedule ``fn(*args, **kwargs)`` in a process; return the future of its result."""
        future = self._pool.schedule(fn, args, kwargs, self._timeout)
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait for all calls, then end the processes.

        With ``wait=False`` or ``cancel_futures``, kill the processes at once; their calls are lost.
        """
        self._pool.close() if wait and not cancel_futures else self._pool.stop()
        self._pool.join()
        # Pebble never completes the futures of calls that were scheduled while its pool broke.
        for future in [*self._open]:
            future.set_exception(BrokenExecutor("The pool has ended before the call."))


class _Spawn(SpawnContext):
    class Process(SpawnProcess):
        """A worker process whose child programs are killed once Pebble finds that it has ended."""

        def __reduce__(self) -> tuple[Any, ...]:
            # This class is pickled as its base class, because a worker that unpickled this class
            # would import this package, and torch with it.
            return object.__new__, (SpawnProcess,), self.__dict__

        def is_alive(self) -> bool:
            is_alive = super().is_alive()
            if not is_alive and self.pid is not None and hasattr(os, "killpg"):
                with suppress(OSError):  # usually no process of the group is left
                    os.killpg(self.pid, signal.SIGKILL)
            return is_alive


class _SpawnForGood(_Spawn):
    class Process(_Spawn.Process):
        """A worker process that reports the exit code 0 as 256, which Pebble treats as an error.

        An objective that ends its process with code 0, as a Fortran ``STOP`` does, then counts as a
        failure. With ``max_tasks`` this class is not used, because such pools end their processes
        regularly.
        """

        @property
        def exitcode(self) -> int | None:
            code = super().exitcode
            return 256 if code == 0 else code
