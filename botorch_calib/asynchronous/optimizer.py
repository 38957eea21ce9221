"""`AsynchronousOptimizer`: several evaluations at a time, and one query chosen at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_count, check_instance, check_one_of, check_positive
from botorch_calib.asynchronous.callers_executors import CallersExecutors, ExecutorFactory, made_by
from botorch_calib.asynchronous.dask_workers import DaskWorkers, is_dask
from botorch_calib.asynchronous.evaluation_limits import EvaluationLimits
from botorch_calib.asynchronous.evaluation_loop import Callback, EvaluationLoop, RunSettings, Stop
from botorch_calib.asynchronous.progress import RunSummary, summarize
from botorch_calib.asynchronous.watched_processes import WatchedProcesses
from botorch_calib.asynchronous.workers import Objective, Workers
from botorch_calib.exceptions import LedgerError
from botorch_calib.ledger.ledger import DecidedQuery, FeedbackLedger

# The ledgers that runs in this process use: their files or, in memory, their ids.
_IN_USE: set[Path | int] = set()


class AsynchronousOptimizer:
    """Keeps ``max_parallel`` evaluations running, and records everything in a ledger.

    A value is recorded when it arrives, even while ``propose`` chooses the next query, which is
    recorded before its evaluation starts. So another run with the same ledger file continues this
    one, however it ends.

    **Processes.** ``workers=4`` runs evaluations in four spawned processes. If one crashes or has
    to be killed, the others keep their work. They end with this process, and on POSIX the programs
    that an objective has started end with its process. They import the main script: guard the
    start of the run by ``if __name__ == "__main__":``.

    **Failures.** A trial fails if the objective raises an exception or returns anything else than
    it may, or once it has lost its worker more than ``limits.max_retries`` times. A process
    pool of yours breaks as a whole when one of its processes dies. One that a function makes is
    replaced, and its evaluations are run again one at a time; else the run stops with an error.

    **Time-outs.** A trial fails once its evaluation has taken ``limits.timeout`` seconds, from when
    a worker is free or, with Dask and other executors whose workers are not known, from submission:
    choose ``max_parallel`` no larger than the number of threads there. Processes of ``workers`` are
    killed and replaced. If a function makes Dask's executor, Dask restarts the worker, which takes
    seconds and needs a nanny. Any other evaluation occupies its slot until it returns, with an
    `EvaluationWarning` the first time, and its value is dropped.

    **Ctrl-C**, SIGTERM (unless the program handles it) or an error of ``propose``: values that have
    arrived are recorded, running trials stay pending in the ledger, and executors made here are
    shut down, their processes killed. Call `run` in the main thread, which receives the signals.

    Args:
        executor: Where evaluations run, unless ``workers`` is given: a ``concurrent.futures``
            executor, which is not shut down here; or a function without arguments that makes a new
            one on each call, shut down at the end. For Dask, pass ``client.get_executor()`` or
            ``client.get_executor``; the client stays open. A process pool must not fork, which may
            deadlock as torch runs threads.
        objective: The function to optimize, of a float64 array of shape ``d``, which it may modify.
            It returns one finite real number, also as a tensor or array of one element; or a dict
            that holds it as ``"y"``, and beside it what else `FeedbackLedger.tell` takes:
            ``"yvar"``, ``"outcomes"`` or ``"context"``. Process pools need it to be picklable.
        ledger: Where trials are recorded.
        propose: Chooses the next query, such as a `DelayAwareProposer`: a function from the ledger
            to a tensor of shape ``d`` or ``1 x d``, or to a `DecidedQuery`, of whose decisions the
            objective returns the outcomes, unless there is one, which limits the value itself.
            Called in the thread that calls `run`.
        max_parallel: Number of evaluations to keep running (default, and at most: ``workers``).
        limits: When to give up an evaluation, a trial or the run (default: ``EvaluationLimits()``,
            without a time-out).
        maximize: Whether larger values are better; None leaves it to the ledger, which records it.
        resume: Whether to ``"rerun"`` trials that are pending when a run starts, under their ids,
            or to ``"keep"`` them, as somebody else evaluates them.
        callbacks: Functions of the ledger and a `Trial`, called in the thread that calls `run`
            after each evaluation that has brought a value or failed. One that returns True ends
            the run, as the time budget does. One that raises an exception costs a warning.
        workers: Number of processes to run evaluations in, instead of an ``executor``.

    Raises:
        InputDataError: If an argument is malformed, or ``maximize`` contradicts the ledger.

    Example:
        >>> optimizer = AsynchronousOptimizer(
        ...     partial(ThreadPoolExecutor, 2),
        ...     lambda x: -((x - 0.3) ** 2).sum(),
        ...     FeedbackLedger(dim=2, maximize=True),
        ...     DelayAwareProposer([[0, 0], [1, 1]]),
        ...     max_parallel=2,
        ... )
        >>> summary = optimizer.run(num_evaluations=5, progress=False)
    """

    def __init__(
        self,
        executor: Executor | ExecutorFactory | None = None,
        objective: Objective | None = None,
        ledger: FeedbackLedger | None = None,
        propose: Callable[[FeedbackLedger], Tensor | DecidedQuery] | None = None,
        max_parallel: int | None = None,
        limits: EvaluationLimits | None = None,
        maximize: bool | None = None,
        resume: str = "rerun",
        callbacks: Sequence[Callback] = (),
        *,
        workers: int | None = None,
    ) -> None:
        if (executor is None) == (workers is None):
            raise InputDataError("Give either an `executor` or a number of `workers`.")
        if workers is not None:
            check_count("workers", workers)
        elif not isinstance(executor, Executor) and not callable(executor):
            raise InputDataError(
                "`executor` must be a concurrent.futures.Executor or a function that makes one, "
                f"got {type(executor).__name__}."
            )
        ledger = check_instance("ledger", ledger, FeedbackLedger)
        for name, function in (("objective", objective), ("propose", propose)):
            if not callable(function):
                raise InputDataError(f"`{name}` must be callable, got {function!r}.")
        if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
            raise InputDataError(f"`callbacks` must be a sequence of functions, got {callbacks!r}.")
        limits = EvaluationLimits() if limits is None else limits
        check_instance("limits", limits, EvaluationLimits)
        if limits.evaluations_per_process is not None and workers is None:
            raise InputDataError(
                "`limits.evaluations_per_process` is for `workers`, not for an `executor`."
            )
        if max_parallel is None and workers is None:
            raise InputDataError("`max_parallel` is needed with an `executor`.")
        at_once = check_count("max_parallel", workers if max_parallel is None else max_parallel)
        if workers is not None and at_once > workers:
            raise InputDataError(
                f"`max_parallel` ({at_once}) must not exceed `workers` ({workers}), each of which "
                "runs one evaluation at a time."
            )
        check_one_of("resume", resume, ("rerun", "keep"))
        if maximize is not None:
            ledger.declare(maximize)
        self.ledger: FeedbackLedger = ledger
        self._executor = executor
        self._objective: Any = objective
        self._settings = RunSettings(
            ledger=ledger,
            propose=propose,  # type: ignore[arg-type]
            max_parallel=at_once,
            limits=limits,
            resume=resume,
            callbacks=tuple(callbacks),
        )

    def run(
        self,
        num_evaluations: int | None = None,
        progress: bool = True,
        seconds: float | None = None,
        stop: Stop | None = None,
    ) -> RunSummary:
        """Evaluate until the ledger holds a number of resolved trials, or for some time.

        A trial is resolved when it has failed or its value has arrived, even if too late for the
        ledger to use it. Evaluations that run when the time is over are awaited.

        Args:
            num_evaluations: Number of resolved trials at which to stop, those of earlier runs
                included; None for no limit.
            progress: Whether to show a progress bar.
            seconds: Time in seconds after which no evaluation starts; None for no limit.
            stop: A function of the ledger, called in this thread after evaluations have ended and,
                if some ended in an earlier run, at the start. Once it returns something true no
                evaluation starts, and those that run are awaited; `RunSummary.stopped` says so.

        Raises:
            BotorchError: If both limits are None, an argument is malformed, ``propose`` returns
                anything but a query, or the objective cannot be sent to worker processes.
            LedgerError: If another run in this process uses the ledger, or something cannot be
                recorded; values that have arrived are logged, to be told by hand.
            EvaluationError: If too many trials in a row fail, or an executor breaks that cannot
                be replaced.

        Warns:
            InputDataWarning: If a value arrives too late for the ledger to use it.
        """
        begin = time.monotonic()
        if num_evaluations is None and seconds is None:
            raise InputDataError("`num_evaluations` or `seconds` must say when the run ends.")
        goal, deadline = math.inf, math.inf
        if num_evaluations is not None:
            goal = check_count("num_evaluations", num_evaluations)
        if seconds is not None:
            deadline = begin + check_positive("seconds", seconds)
        if stop is not None and not callable(stop):
            raise InputDataError(f"`stop` must be a function of the ledger, got {stop!r}.")
        used = self.ledger.path or id(self.ledger)
        if used in _IN_USE:
            raise LedgerError("Another run in this process uses the `ledger`: wait for its end.")
        _IN_USE.add(used)
        try:
            settings = self._settings
            loop = EvaluationLoop(settings, self._workers(), goal, deadline, progress, stop)
            loop.run()
        finally:
            _IN_USE.remove(used)
        return summarize(self.ledger, time.monotonic() - begin, loop.stopped)

    def _workers(self) -> Workers:
        """Workers for a run."""
        limits, given = self._settings.limits, self._executor
        if given is None:
            return WatchedProcesses(self._objective, limits.evaluations_per_process)
        make = None if isinstance(given, Executor) else given
        executor = given if isinstance(given, Executor) else made_by(given)
        if not is_dask(executor):
            return CallersExecutors(executor, make, self._objective)
        longest = limits.longest_without_workers
        return DaskWorkers(executor, self._objective, make is not None, longest)
