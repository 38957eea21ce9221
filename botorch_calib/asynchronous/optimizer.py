"""Bayesian optimisation that keeps several evaluations running and asks for one at a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_count, check_one_of, check_positive
from botorch_calib.asynchronous.evaluations import Objective
from botorch_calib.asynchronous.loop import EvaluationLoop, RunSettings, is_resolved
from botorch_calib.asynchronous.pools import ExecutorFactory, PoolSupply
from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.trials import Trial, TrialStatus


@dataclass(frozen=True)
class RunSummary:
    """Where a ledger stands after a run.

    Attributes:
        best: The trial with the best value, or None if no value has arrived.
        num_observed: Number of trials whose value has arrived, late ones included.
        num_failed: Number of trials that failed.
        num_pending: Number of trials that are still waited for.
        seconds: Duration of the run.
    """

    best: Trial | None
    num_observed: int
    num_failed: int
    num_pending: int
    seconds: float


class AsynchronousOptimizer:
    """Keeps ``max_parallel`` evaluations running and writes everything into a ledger.

    As soon as one of them ends, all values that have arrived are written into the ledger and
    ``propose`` chooses the next query. Each query is in the ledger before its evaluation starts:
    whatever ends the process, a later run with the same ledger file continues it. A value's time
    is that of the ledger's clock: the number of queries so far, or the time of its arrival.

    **Failures.** An exception of the objective, or a value that is not one finite number, fails
    the trial with that reason, which is logged as well. If a worker dies, nobody can tell which
    of the evaluations in its executor killed it: each of them is run again, in an executor of
    its own, and one that is lost more than ``max_retries`` times fails. That needs an executor
    made by a function; one that is given as it is cannot be replaced, and the run then stops
    with an error. Dask replaces its workers itself, and only a trial that keeps killing them is
    lost.

    **Time-outs.** A trial fails once its evaluation has taken ``timeout`` seconds, and a value
    that comes after that is dropped. While ``propose`` runs nobody looks: what ends by then is
    in time. In executors of threads and processes the time begins when
    a worker is free, the start of a new process included; elsewhere, with Dask for example, on
    submission: there let ``max_parallel`` not exceed the number of workers' threads. Process
    pools made by a function are killed and replaced; other evaluations that ran in them are run
    again, which is no retry of theirs. Of Dask, if a function makes the executor, the worker is
    restarted, which takes seconds and needs a nanny. Threads, and processes and clusters that
    belong to the caller, cannot be interrupted: the slot stays occupied until the evaluation
    returns, with an `EvaluationWarning` the first time.

    **Ctrl-C.** Nothing new is proposed, values that have arrived are written down, what runs
    stays pending in the ledger, executors made here are shut down and their processes killed,
    and ``KeyboardInterrupt`` is raised. Errors of ``propose`` do the same. Python itself waits
    for threads that still run when it exits. Run it in the main thread, where ctrl-C arrives.

    **Processes.** Forking a process that runs threads, as torch does, may deadlock: choose
    another start method, and have the workers leave ctrl-C to this process::

        def make_pool():
            return ProcessPoolExecutor(
                max_workers=4,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=signal.signal,
                initargs=(signal.SIGINT, signal.SIG_IGN),
            )

    Idle workers of a process that is killed outright (``SIGKILL``) wait for ever: the standard
    library does not end them. Kill its process group, or let an initializer watch
    ``multiprocessing.parent_process()``, as the script of the tutorial on delays does.

    The objective is pickled for each evaluation. If it lives in a module of its own that imports
    little, workers start fast: nothing of this package is sent to them.

    Several processes may share a ledger file; let each use ``resume="keep"``. Each then stops at
    the common number of resolved trials, and what the others still run comes on top of it.

    Args:
        executor: A ``concurrent.futures`` executor, which is not shut down here; or a function
            without arguments that makes a new one each time. Executors made by the function are
            replaced when they break, killed when that is the only way to end an evaluation, and
            shut down at the end. For Dask these are ``client.get_executor()`` and
            ``client.get_executor``; the client stays open.
        objective: Called with a float64 array of shape ``d``, its own; returns one real number:
            a float, or a NumPy value or tensor of one element. Process pools need it picklable.
        ledger: Where trials are kept.
        propose: Chooses the next query from the ledger: a tensor of shape ``d`` or ``1 x d``.
            Called in the thread that calls `run`, never twice at the same time.
        max_parallel: Number of evaluations to keep running.
        timeout: Longest duration of an evaluation in seconds, or None.
        max_retries: How often a trial that was lost with its worker is run again.
        max_consecutive_failures: The run stops with an error when that many trials in a row fail.
        maximize: Whether larger values are better, for the summary and the progress bar.
        progress: Whether to show a progress bar.
        resume: What to do with trials that are pending when a run starts. ``"rerun"``: they are
            run again under their ids. ``"keep"``: they are left alone, as another process runs
            them. Trials that have expired by then are not run again.

    Raises:
        InputDataError: If an argument has the wrong type or is out of range.
    """

    def __init__(
        self,
        executor: Executor | ExecutorFactory,
        objective: Objective,
        ledger: FeedbackLedger,
        propose: Callable[[FeedbackLedger], Tensor],
        max_parallel: int,
        *,
        timeout: float | None = None,
        max_retries: int = 1,
        max_consecutive_failures: int = 10,
        maximize: bool = True,
        progress: bool = True,
        resume: str = "rerun",
    ) -> None:
        if not isinstance(executor, Executor) and not callable(executor):
            raise InputDataError(
                "`executor` must be a concurrent.futures.Executor or a function that makes one, "
                f"got a {type(executor).__name__}."
            )
        if not isinstance(ledger, FeedbackLedger):
            raise InputDataError(
                f"`ledger` must be a FeedbackLedger, got a {type(ledger).__name__}."
            )
        for name, function in (("objective", objective), ("propose", propose)):
            if not callable(function):
                raise InputDataError(f"`{name}` must be callable, got {function!r}.")
        check_one_of("resume", resume, ("rerun", "keep"))
        self._executor = executor
        self._settings = RunSettings(
            objective=objective,
            ledger=ledger,
            propose=propose,
            max_parallel=check_count("max_parallel", max_parallel, 1),
            timeout=None if timeout is None else check_positive("timeout", timeout),
            max_retries=check_count("max_retries", max_retries, 0),
            max_consecutive_failures=check_count(
                "max_consecutive_failures", max_consecutive_failures, 1
            ),
            maximize=bool(maximize),
            progress=bool(progress),
            resume=resume,
        )

    @property
    def ledger(self) -> FeedbackLedger:
        """Where trials are kept."""
        return self._settings.ledger

    def run(self, num_evaluations: int) -> RunSummary:
        """Evaluate until that many trials of the ledger are resolved, earlier runs included.

        A trial is resolved when its value has arrived, even if too late for the ledger to use
        it, or when it has failed. No more evaluations are started than that takes.

        Args:
            num_evaluations: Number of trials to resolve.

        Returns:
            Where the ledger stands.

        Raises:
            InputDataError: If ``num_evaluations`` is not a positive integer, ``propose`` gives
                something that is no query, or the objective cannot be pickled where it must be.
            BotorchTensorDimensionError: If ``propose`` gives a query of another shape.
            EvaluationError: If too many trials in a row fail, or an executor breaks that cannot
                be replaced.
        """
        goal = check_count("num_evaluations", num_evaluations, 1)
        begin = time.monotonic()
        pools = PoolSupply(self._executor, self._settings.objective)
        EvaluationLoop(self._settings, pools, goal).run()
        return self._summary(time.monotonic() - begin)

    def _summary(self, seconds: float) -> RunSummary:
        trials = self.ledger.trials
        status = Counter(trial.status for trial in trials)
        return RunSummary(
            best=self.ledger.best(maximize=self._settings.maximize),
            num_observed=sum(map(is_resolved, trials)) - status[TrialStatus.FAILED],
            num_failed=status[TrialStatus.FAILED],
            num_pending=status[TrialStatus.PENDING],
            seconds=seconds,
        )
