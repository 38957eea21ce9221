"""The optimizer's own worker processes, on Pebble: dead, late and worn ones are replaced."""

from __future__ import annotations

import contextlib
import logging
import os
import runpy
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future, InvalidStateError, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError
from pebble import ProcessExpired, ProcessPool

from botorch_calib.asynchronous import process_startup
from botorch_calib.asynchronous.workers import Objective, Workers, pickled, stillborn

logger = logging.getLogger(__name__)

# Seconds for idle processes to end by themselves, with what was registered for their exit.
EXIT_SECONDS = 30.0

# Stands for exit code 0, for which Pebble reports no loss: an objective may call ``exit(0)``, as a
# STOP in Fortran does.
UNTIMELY_SUCCESS = 256

STARTUP = process_startup.__file__


class WatchedProcesses(Workers):
    """Spawned processes, each in a Pebble pool of its own: torch's threads forbid forks.

    In a pool of several, one that dies would disturb the others: it may hold the lock of their
    pipe, or leave half a message in it; and if it dies before it has said what it works on, Pebble
    never reports the loss. Alone, a crash or a time-out is the loss of one evaluation.
    """

    def __init__(self, objective: Objective, evaluations_per_process: int | None = None) -> None:
        _check_importable(pickled(objective))
        self._objective = objective
        self._most = evaluations_per_process
        self._processes: list[_Process] = []
        self._leaving: list[threading.Thread] = []

    def prepare(self) -> None:
        """Start a process, if none is idle: its start is no part of an evaluation's time."""
        for process in [each for each in self._processes if each.is_idle]:
            if process.is_sound and process.num_evaluations != self._most:
                return
            self._processes.remove(process)
            self._let_go(process, EXIT_SECONDS)
        self._processes.append(_Process())

    def submit(self, x: np.ndarray, alone: bool) -> Future[Any]:
        """Start an evaluation in an idle process or, if ``alone``, in one that is known to work."""
        self.prepare()
        process = next(each for each in self._processes if each.is_idle)
        if alone:
            process.probe()
        process.num_evaluations += 1
        return process.run(process_startup.evaluate, pickled(self._objective), x)

    def has_started(self, future: Future[Any]) -> bool:
        return future.running()

    def cause_of_death(self, future: Future[Any], error: BaseException) -> str | None:
        """The signal or the exit code; None if ``error`` comes from within the process."""
        if hasattr(error, "traceback"):  # Pebble adds it to what the objective raises
            return None
        if isinstance(error, ProcessExpired):
            code = error.exitcode
            return signal.Signals(-code).name if code < 0 else f"exit code {code % 256}"
        return str(error) if isinstance(error, BrokenExecutor) else None

    def end(self, future: Future[Any]) -> bool:
        """Give up an evaluation: Pebble kills its process."""
        future.cancel()
        return True

    def check(self) -> None:
        """Report losses that Pebble does not, as one of its threads has died: others can start."""
        for process in self._processes:
            process.report_loss()

    def close(self, kill: bool) -> None:
        """Let all processes end, and kill those that do not."""
        processes, self._processes = self._processes, []
        for process in processes:
            self._let_go(process, 0.0 if kill else EXIT_SECONDS)
        for thread in self._leaving:
            thread.join()

    def _let_go(self, process: _Process, patience: float) -> None:
        self._leaving = [thread for thread in self._leaving if thread.is_alive()]
        self._leaving.append(threading.Thread(target=process.close, args=(patience,), daemon=True))
        self._leaving[-1].start()


class _Process:
    """A process in a pool of its own."""

    def __init__(self) -> None:
        self.num_evaluations = 0
        self._last: Future[Any] = Future()
        self._last.set_result(None)  # idle
        self._context = _Context()
        self._pool = ProcessPool(
            1,
            initializer=runpy.run_path,
            initargs=(STARTUP, None, "__main__"),
            context=self._context,
        )
        _ = self._pool.active  # this starts it

    @property
    def is_idle(self) -> bool:
        return self._last.done()

    @property
    def is_sound(self) -> bool:
        """Whether it lives and is idle, and none before it was killed, perhaps with a lock."""
        if not self._pool.active or not self.is_idle or self._last.cancelled():
            return False
        return not isinstance(self._last.exception(), ProcessExpired)

    def run(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Call a function in the process."""
        self._last = Future()
        try:
            self._last = self._pool.schedule(function, arguments)
        except RuntimeError as error:  # it has died since it was last looked at
            self._last.set_exception(BrokenProcessPool(str(error)))
        return self._last

    def probe(self) -> None:
        """Raise ``EvaluationError`` if the process dies even without an evaluation."""
        future = self.run(os.getpid)
        while not wait([future], timeout=1.0).done:
            self.report_loss()
        try:
            future.result()
        except (BrokenExecutor, ProcessExpired) as error:
            raise stillborn(error) from error

    def report_loss(self) -> None:
        if not self.is_idle and not self._pool.active:
            with contextlib.suppress(InvalidStateError):  # it is done by now
                self._last.set_exception(BrokenProcessPool("what it has sent cannot be read"))

    def close(self, patience: float) -> None:
        """End the process, and kill it if it has not ended after some seconds, or is not sound."""
        patience = patience if self.is_sound else 0.0
        self._context.process.patience = patience
        self._pool.close() if patience else self._pool.stop()
        self._pool.join()


class _Spawned(SpawnProcess):
    """A process that Pebble watches: the programs that it has started end with it."""

    patience = 0.0

    def __reduce__(self) -> tuple[Any, ...]:
        # In the worker it is a plain one: this class would import the package there.
        return object.__new__, (SpawnProcess,), self.__dict__

    @property
    def exitcode(self) -> int | None:
        code = super().exitcode
        return UNTIMELY_SUCCESS if code == 0 else code

    def is_alive(self) -> bool:
        """Pebble asks this ten times a second."""
        alive = super().is_alive()
        if not alive and not self.patience:
            self._kill_group()
        return alive

    def terminate(self) -> None:
        """End at once, or after a while; workers do not heed SIGTERM."""
        self.join(self.patience)
        if super().is_alive():
            if self.patience:
                logger.warning("A worker process did not end by itself, and was killed.")
            self._kill_group()
            self.kill()

    def _kill_group(self) -> None:
        """Kill the group of processes that this one leads or, if it has ended, has led."""
        assert self.pid is not None
        # A process id is not given again while its group has members: if it was, they are gone.
        if not hasattr(os, "killpg") or (self.exitcode is not None and _is_process(self.pid)):
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)


class _Context(SpawnContext):
    """Spawns the processes of a pool, and knows the last one."""

    process: _Spawned

    def Process(self, **arguments: Any) -> _Spawned:  # type: ignore[override]  # noqa: N802
        self.process = _Spawned(**arguments)
        return self.process


def _is_process(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)  # it belongs to somebody else
    return True


def _check_importable(objective: bytes) -> None:
    """Refuse an objective that new processes cannot import: every trial would fail for it."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    is_stdin = file is not None and file.startswith("<")
    has_script = file is not None or getattr(main, "__spec__", None) is not None
    if is_stdin or (not has_script and b"__main__" in objective):
        also = " The program itself has to be a file as well." if is_stdin else ""
        raise InputDataError(
            "`objective` has to be imported by worker processes, and a notebook, `python -c` and "
            f"the standard input cannot be: put it into a file of its own, and import it.{also}"
        )
