"""The loop of an asynchronous optimizer: it starts, awaits, records, repeats and gives up."""

from __future__ import annotations

import contextlib
import logging
import queue
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from botorch_calib.asynchronous.evaluation_outcomes import End, Outcome, read_outcome
from botorch_calib.asynchronous.progress import ProgressBar, is_resolved
from botorch_calib.asynchronous.termination import termination_as_exit
from botorch_calib.asynchronous.timeouts_and_retries import EvaluationLimits, EvaluationTimer
from botorch_calib.asynchronous.worker_pools import Objective, PoolSupply, WorkerPool
from botorch_calib.exceptions import EvaluationError, EvaluationWarning, TrialStateError
from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.trials import Trial, TrialStatus

logger = logging.getLogger(__name__)

# The longest wait in seconds; some platforms notice ctrl-C only when a wait ends.
TICK = 1.0


@dataclass(frozen=True)
class RunSettings:
    """The arguments of an `AsynchronousOptimizer`, checked."""

    objective: Objective
    ledger: FeedbackLedger
    propose: Callable[[FeedbackLedger], Tensor]
    max_parallel: int
    limits: EvaluationLimits
    maximize: bool
    resume: str


@dataclass(eq=False)
class Evaluation:
    """A trial that is to be evaluated.

    Attributes:
        trial: The trial as it was submitted.
        num_losses: How often it was lost with its worker.
    """

    trial: Trial
    num_losses: int = 0


@dataclass(frozen=True, eq=False)
class Run:
    """An evaluation, and the pool in which it runs."""

    evaluation: Evaluation
    pool: WorkerPool

    @property
    def trial(self) -> Trial:
        """The trial that is evaluated."""
        return self.evaluation.trial


class EvaluationLoop:
    """One run of an `AsynchronousOptimizer`.

    Args:
        settings: What to run, and how.
        pools: Where to run it.
        num_evaluations: Number of trials of the ledger to resolve, earlier ones included.
        progress: Whether to show a progress bar.
    """

    def __init__(
        self, settings: RunSettings, pools: PoolSupply, num_evaluations: int, progress: bool
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._timer = EvaluationTimer(settings.limits.timeout)
        self._ledger = settings.ledger
        self._pools = pools
        self._goal = num_evaluations
        self._progress = progress
        self._num_trials = 0
        self._unresolved: set[int] = set()
        # Trials that this run has resolved. If the system clock was set back, the ledger does not
        # show them as resolved yet.
        self._settled: set[int] = set()
        self._best: Trial | None = None
        self._take_stock()
        # Started before any new query: what an earlier run or a dead worker left behind.
        self._waiting = deque(Evaluation(trial) for trial in self._left_behind())
        self._running: dict[Future[Any], Run] = {}
        # Timed out, but occupying a worker until they return.
        self._overdue: set[Future[Any]] = set()
        # Times of arrival. Weak, as no reference to a settled future may remain: as long as there
        # is one, Dask evaluates it again if the worker that holds its result dies.
        self._arrivals: weakref.WeakKeyDictionary[Future[Any], float] = weakref.WeakKeyDictionary()
        # Other threads write to this queue. Unlike `concurrent.futures.wait`, waiting for it holds
        # no lock that ctrl-C could leave locked.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._num_failures_in_a_row = 0
        self._has_warned = False
        self._bar = ProgressBar(progress, num_evaluations, self._num_resolved)

    def run(self) -> None:
        """Evaluate until the goal is reached; clean up in any case."""
        with termination_as_exit():
            try:
                while self._advance():
                    pass
                self._forget_overdue()
                self._pools.close(wait=not self._overdue, kill=False)
            except BaseException:
                self._stop()
                raise
            finally:
                self._bar.close()

    def _advance(self) -> bool:
        """Record what has arrived, then start one evaluation or wait; False at the end."""
        self._check_pools()
        self._collect()
        self._take_stock()
        has_started = self._start_next()
        self._bar.show(self._num_resolved, len(self._running), self._best)
        if has_started:
            return True
        if not self._running and not self._waiting and self._num_resolved >= self._goal:
            return False
        self._wait()
        return True

    def _check_pools(self) -> None:
        """Before anything is read of them: what a cluster has lost did not fail."""
        for pool in {run.pool for run in self._running.values()}:
            pool.check(self._limits.longest_without_workers)

    # ------------------------------------------------------------ starting and waiting

    def _left_behind(self) -> list[Trial]:
        """Trials that an earlier run left pending, as many as are needed."""
        if self._settings.resume == "keep":
            return []
        pending = [t for t in self._ledger.trials if t.status is TrialStatus.PENDING]
        return pending[: max(self._goal - self._num_resolved, 0)]

    def _take_stock(self) -> None:
        """Count resolved trials, including those that other processes resolved."""
        ledger = self._ledger.snapshot()
        known = {*self._unresolved, *range(self._num_trials, len(ledger))} - self._settled
        self._num_trials = len(ledger)
        # A resolved trial stays resolved, so it need not be looked at again.
        self._unresolved = {trial for trial in known if not is_resolved(ledger[trial])}
        if self._progress:
            self._best = ledger.best(self._settings.maximize)

    @property
    def _num_resolved(self) -> int:
        return self._num_trials - len(self._unresolved)

    def _start_next(self) -> bool:
        """Start one evaluation if a slot is free and it is needed, else return False."""
        if len(self._running) + len(self._overdue) >= self._settings.max_parallel:
            return False
        if self._waiting:
            self._start(self._waiting.popleft())
            return True
        if self._num_resolved + len(self._running) >= self._goal:
            return False
        # First of all: if no executor can be made, no query is chosen in vain or left pending.
        # And a new process starts while the query is chosen.
        pool = self._pools.acquire(private=False)
        trial_id = self._ledger.submit(self._settings.propose(self._ledger))
        self._start(Evaluation(self._ledger[trial_id]), pool)
        return True

    def _start(self, evaluation: Evaluation, pool: WorkerPool | None = None) -> None:
        # The objective may modify its array.
        x = evaluation.trial.x.clone().numpy()
        if pool is None:
            pool = self._pools.acquire(private=evaluation.num_losses > 0)
        try:
            future = pool.submit(self._settings.objective, x)
        except BrokenExecutor as error:
            # The pool broke before it received this evaluation, which is therefore not lost.
            self._rescue(pool, Outcome(End.LOSS, reason=str(error), error=error))
            pool = self._pools.acquire(private=evaluation.num_losses > 0)
            try:
                future = pool.submit(self._settings.objective, x)
            except BrokenExecutor as again:
                raise EvaluationError(f"A new executor broke at once: {again}") from again
        self._running[future] = Run(evaluation, pool)
        future.add_done_callback(self._on_done)

    def _on_done(self, future: Future[Any]) -> None:
        """Note the time of arrival and wake the loop; called in a thread of the executor."""
        self._arrivals[future] = time.time()
        self._wake.put(None)

    def _wait(self) -> None:
        """Wait until an evaluation finishes or may time out, but no longer than a tick."""
        patience = self._timer.patience(self._pools_of_running(), TICK)
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=patience)
            while True:
                self._wake.get_nowait()

    def _pools_of_running(self) -> dict[Future[Any], WorkerPool]:
        return {future: self._running[future].pool for future in self._in_order(self._running)}

    def _stop(self) -> None:
        """Record values that have arrived, cancel what has not started, kill what is ours."""
        try:
            for future in self._in_order(self._running):
                pool = self._running[future].pool
                # A process pool must not be killed while it holds cancelled futures.
                if not pool.is_killable:
                    future.cancel()
                if not future.done():
                    continue
                # Failures may be due to the interrupt: a resumed run evaluates them again.
                outcome = read_outcome(future, pool)
                if outcome.end is End.VALUE:
                    with contextlib.suppress(Exception):
                        self._observe(future, outcome.value)
            self._forget_overdue()
        finally:  # a second ctrl-C must not leave processes behind either
            self._pools.close(wait=False, kill=True)

    def _forget_overdue(self) -> None:
        """Make Dask forget tasks that it would run again if a worker died."""
        self._overdue = {future for future in self._overdue if not future.cancel()}

    # ------------------------------------------------------------ what has arrived

    def _collect(self) -> None:
        """Record all values that have arrived, and give up what takes too long."""
        self._overdue = {future for future in self._overdue if not future.done()}
        while done := self._in_order(future for future in self._running if future.done()):
            for future in done:
                if future in self._running:  # may be lost with an earlier future of its pool
                    self._settle(future)
        self._time_out()

    def _in_order(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        return sorted(futures, key=lambda future: self._running[future].trial.id)

    def _settle(self, future: Future[Any]) -> None:
        """Record the outcome of a finished evaluation; a lost one is run again."""
        run = self._running[future]
        outcome = read_outcome(future, run.pool)
        if outcome.end is End.INTERRUPT:
            raise KeyboardInterrupt from outcome.error
        if outcome.end is End.LOSS:
            run.pool.check(None)  # again, as a client may just have lost its scheduler
        if isinstance(outcome.error, BrokenExecutor) and outcome.end is End.LOSS:
            self._rescue(run.pool, outcome)
            return
        if outcome.end is End.VALUE:
            self._observe(future, outcome.value)
        del self._running[future]
        self._pools.release(run.pool)
        if outcome.end is End.FAILURE:
            self._fail(run.trial, outcome.reason, outcome.error)
        elif outcome.end is End.LOSS:
            self._lose(run.evaluation, outcome)

    def _observe(self, future: Future[Any], value: float) -> None:
        trial = self._running[future].trial
        moment = None
        if self._ledger.clock == "seconds":
            # The value may have arrived long ago, while the next query was being chosen.
            moment = max(self._arrivals.get(future, time.time()), trial.submitted_at)
        with self._if_unresolved(trial):
            self._ledger.observe(trial.id, value, time=moment)
        self._settled.add(trial.id)
        self._num_failures_in_a_row = 0

    def _fail(self, trial: Trial, reason: str, error: BaseException | None) -> None:
        logger.warning("Trial %d failed: %s", trial.id, reason)
        logger.debug("Trial %d failed with:", trial.id, exc_info=error)
        with self._if_unresolved(trial):
            self._ledger.fail(trial.id, reason)
        self._settled.add(trial.id)
        self._num_failures_in_a_row += 1
        if self._num_failures_in_a_row >= self._limits.max_consecutive_failures:
            raise EvaluationError(
                f"{self._num_failures_in_a_row} trials in a row failed, the last one, trial "
                f"{trial.id}, with: {reason}"
            ) from error

    @contextlib.contextmanager
    def _if_unresolved(self, trial: Trial) -> Iterator[None]:
        """Accept that the trial was resolved by others, for example by another process."""
        try:
            yield
        except TrialStateError as error:
            logger.warning("The result of trial %d was not needed: %s", trial.id, error)

    # ------------------------------------------------------------ lost or late

    def _lose(self, evaluation: Evaluation, outcome: Outcome) -> None:
        """Run a lost trial again, or fail it if it was lost too often."""
        evaluation.num_losses += 1
        if evaluation.num_losses > self._limits.max_retries:
            times = "once" if evaluation.num_losses == 1 else f"{evaluation.num_losses} times"
            self._fail(evaluation.trial, f"{outcome.reason} (it was run {times})", outcome.error)
        else:
            logger.warning("Trial %d runs again: %s", evaluation.trial.id, outcome.reason)
            self._waiting.append(evaluation)

    def _rescue(self, pool: WorkerPool, loss: Outcome | None) -> None:
        """Kill a pool, and run the evaluations again that were lost with it.

        Args:
            pool: The pool.
            loss: Why it broke, which counts as a loss of each evaluation; None if it was intact.
        """
        self._pools.discard(pool, loss.error if loss else None)
        members = self._in_order(f for f, run in self._running.items() if run.pool is pool)
        # The others finished before, and are collected as usual.
        lost = [f for f in members if not f.done() or read_outcome(f, pool).end is End.LOSS]
        evaluations = [self._running.pop(future).evaluation for future in lost]
        if loss is None:
            self._waiting.extend(evaluations)
            return
        for evaluation in evaluations:
            self._lose(evaluation, loss)

    def _time_out(self) -> None:
        """Fail the trials that take too long, and free their workers where possible."""
        late = self._timer.timed_out(self._pools_of_running())
        runs = {future: self._running.pop(future) for future in late}
        for future, run in runs.items():
            self._free(future, run.pool)
        for run in runs.values():
            self._fail(run.trial, f"timed out after {self._limits.timeout:.6g} seconds", None)
        if not self._overdue.isdisjoint(late) and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "An evaluation that has timed out cannot be ended and keeps its worker until it "
                "returns. Processes can be ended if `executor` is a function that makes one.",
                EvaluationWarning,
                stacklevel=2,
            )

    def _free(self, future: Future[Any], pool: WorkerPool) -> None:
        """End a late evaluation if its executor can, else note that its worker stays busy."""
        if pool.is_killable:
            if not pool.is_killed:
                self._rescue(pool, loss=None)
            return
        if not pool.free(future):
            self._overdue.add(future)
        self._pools.release(pool, wait=future not in self._overdue)
