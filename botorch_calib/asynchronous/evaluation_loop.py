"""The loop of an asynchronous optimizer: it starts, awaits, records, repeats and gives up."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from botorch_calib.asynchronous.evaluation_outcomes import (
    End,
    Outcome,
    describe,
    read_outcome,
    read_value,
)
from botorch_calib.asynchronous.progress import ProgressBar
from botorch_calib.asynchronous.termination import termination_as_exit
from botorch_calib.asynchronous.timeouts_and_retries import EvaluationLimits, EvaluationTimer
from botorch_calib.asynchronous.worker_pools import Objective, PoolSupply, WorkerPool
from botorch_calib.exceptions import EvaluationError, EvaluationWarning, TrialStateError
from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.trials import Trial

logger = logging.getLogger(__name__)

# Told of each evaluation that has ended; True ends the run.
Callback = Callable[[FeedbackLedger, Trial], object]

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
    resume: str
    callbacks: Sequence[Callback]


@dataclass(frozen=True)
class Budget:
    """When a run has done enough.

    Attributes:
        num_evaluations: Number of trials of the ledger to resolve, earlier ones included, or
            infinite.
        deadline: Time on the monotonic clock from which no evaluation starts, or infinite.
    """

    num_evaluations: float
    deadline: float

    def seconds_left(self) -> float:
        """Seconds in which evaluations may start, negative after the deadline."""
        return self.deadline - time.monotonic()


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
        budget: When it has done enough.
        progress: Whether to show a progress bar.
    """

    def __init__(
        self, settings: RunSettings, pools: PoolSupply, budget: Budget, progress: bool
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._timer = EvaluationTimer(settings.limits.timeout)
        self._ledger = settings.ledger
        self._pools = pools
        self._budget = budget
        self._goal = budget.num_evaluations
        self._was_told_to_end = False
        self._failed_callbacks: set[int] = set()
        self._progress = progress
        # Pending trials that an earlier run, or somebody by hand, has left to this one.
        self._orphans: deque[int] = deque()
        if settings.resume == "rerun":
            pending = (trial.id for trial in self._ledger if trial.status == "pending")
            self._orphans.extend(pending)
        self._best: Trial | None = None
        self._take_stock()
        # Evaluations that were lost with their worker, and run again.
        self._waiting: deque[Evaluation] = deque()
        # A pool for the next trial that nobody else was faster to choose.
        self._spare: WorkerPool | None = None
        self._running: dict[Future[Any], Run] = {}
        # Timed out, but occupying a worker until they return.
        self._overdue: set[Future[Any]] = set()
        # Evaluations whose value is in the ledger. Weak, as no reference to a settled future may
        # remain: as long as there is one, Dask evaluates it again if the worker that holds its
        # result dies.
        self._recorded: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        # Values are recorded by this thread and by those of the executor.
        self._recording = threading.Lock()
        self._has_ended = False
        # Other threads write to this queue. Unlike `concurrent.futures.wait`, waiting for it holds
        # no lock that ctrl-C could leave locked.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._num_failures_in_a_row = 0
        self._has_warned = False
        self._bar = ProgressBar(progress, self._goal, self._num_resolved)

    def run(self) -> None:
        """Evaluate until the goal is reached; clean up in any case."""
        try:
            with termination_as_exit():
                self._run()
        finally:
            self._bar.close()

    def _run(self) -> None:
        try:
            while self._advance():
                pass
            self._forget_overdue()
            self._pools.close(kill=False)
        except BaseException:
            self._stop()
            raise
        finally:
            with self._recording:
                self._has_ended = True

    def _advance(self) -> bool:
        """Record what has arrived, then start one evaluation or wait; False at the end."""
        self._check_pools()
        self._collect()
        self._take_stock()
        has_started = self._start_next()
        self._bar.show(self._num_resolved, len(self._running), self._best)
        if has_started:
            return True
        if not self._running and self._is_done():
            return False
        self._wait()
        return True

    def _is_done(self) -> bool:
        """Whether nothing is left to start, neither here nor, should it be lost, elsewhere."""
        if self._is_over():
            return True
        return not self._waiting and self._num_resolved >= self._goal

    def _is_over(self) -> bool:
        """Whether no evaluation may start any more, whatever the goal."""
        return self._was_told_to_end or self._budget.seconds_left() <= 0.0

    def _check_pools(self) -> None:
        """Before anything is read of them: what a cluster has lost did not fail."""
        for pool in {run.pool for run in self._running.values()}:
            pool.check(self._limits.longest_without_workers)

    # ------------------------------------------------------------ starting and waiting

    def _take_stock(self) -> None:
        """Count what is done."""
        self._num_resolved = int(self._ledger._view(None).resolved.sum())
        if self._progress:
            self._best = self._ledger.best()

    def _start_next(self) -> bool:
        """Start one evaluation if a slot is free and it is needed, else return False."""
        is_full = len(self._running) + len(self._overdue) >= self._settings.max_parallel
        if is_full or self._is_over():
            return False
        if self._waiting:
            self._start(self._waiting.popleft())
            return True
        if self._num_resolved + len(self._running) >= self._goal:
            return False
        # First of all: if no executor can be made, no query is chosen in vain or left pending.
        # And a new process starts while the query is chosen.
        if self._spare is None or self._spare.is_killed:
            self._spare = self._pools.acquire(private=False)
        trial_id = self._next_trial()
        if trial_id is None:
            return False
        pool, self._spare = self._spare, None
        self._start(Evaluation(self._ledger[trial_id]), pool)
        return True

    def _next_trial(self) -> int | None:
        """A trial that an earlier run has left behind, or a new one; None if the time is over."""
        while self._orphans:
            trial = self._ledger[self._orphans.popleft()]
            if trial.status == "pending":
                return trial.id

        class IsOver(Exception):
            """The time is over: what was chosen is not needed."""

        def propose(ledger: FeedbackLedger) -> Tensor:
            x = self._settings.propose(ledger)
            if self._is_over():
                raise IsOver
            return x

        try:
            return self._ledger.ask(propose).id
        except IsOver:
            return None

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
        future.add_done_callback(partial(self._on_done, evaluation.trial))

    def _on_done(self, trial: Trial, future: Future[Any]) -> None:
        """Record a value and wake the loop; called in a thread of the executor.

        The loop may be choosing a query, which can take minutes. It records what cannot be
        recorded here, or raises what prevents that.
        """
        try:
            outcome = read_value(future)
            if outcome is not None and outcome.end is End.VALUE:
                self._record(trial, future, outcome.value)
        except Exception as error:
            logger.debug("Trial %d is recorded later: %s", trial.id, error)
        finally:
            self._wake.put(None)

    def _wait(self) -> None:
        """Wait until an evaluation finishes or may time out, but no longer than a tick."""
        longest = TICK
        if not self._is_over():
            longest = min(longest, self._budget.seconds_left())
        patience = self._timer.patience(self._pools_of_running(), max(longest, 0.0))
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
                    self._observe_at_last(future, outcome.value)
            self._forget_overdue()
        finally:  # a second ctrl-C must not leave processes behind either
            self._pools.close(kill=True)

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
        if outcome.end is End.VALUE:
            self._call_back(run.trial)
        elif outcome.end is End.FAILURE:
            self._fail(run.trial, outcome.reason, outcome.error)
        elif outcome.end is End.LOSS:
            self._lose(run.evaluation, outcome)

    def _observe(self, future: Future[Any], value: float) -> None:
        self._record(self._running[future].trial, future, value)
        self._num_failures_in_a_row = 0

    def _observe_at_last(self, future: Future[Any], value: float) -> None:
        """As `_observe`, but a value that cannot be recorded is told, as it may have cost hours."""
        try:
            self._observe(future, value)
        except Exception as error:
            logger.error(
                "The value %r of trial %d could not be recorded: `tell` the ledger, or the trial "
                "is evaluated again. %s",
                value,
                self._running[future].trial.id,
                error,
            )

    def _record(self, trial: Trial, future: Future[Any], value: float) -> None:
        """Write a value to the ledger, once, and not after the run has ended."""
        with self._recording:
            if future in self._recorded or self._has_ended:
                return
            with self._if_unresolved(trial):
                self._ledger.observe(trial.id, value)
            self._recorded.add(future)

    def _fail(self, trial: Trial, reason: str, error: BaseException | None) -> None:
        logger.warning("Trial %d failed: %s", trial.id, reason)
        logger.debug("Trial %d failed with:", trial.id, exc_info=error)
        with self._if_unresolved(trial):
            self._ledger.fail(trial.id, reason)
        self._num_failures_in_a_row += 1
        self._call_back(trial)
        if self._num_failures_in_a_row >= self._limits.max_consecutive_failures:
            raise EvaluationError(
                f"{self._num_failures_in_a_row} trials in a row failed, the last one, trial "
                f"{trial.id}, with: {reason}"
            ) from error

    def _call_back(self, trial: Trial) -> None:
        """Tell callbacks that an evaluation has ended; their errors cost nothing but a warning."""
        for number, callback in enumerate(self._settings.callbacks):
            try:
                if callback(self._ledger, self._ledger[trial.id]) is True:
                    self._was_told_to_end = True
            except Exception as error:
                logger.error("A callback failed after trial %d", trial.id, exc_info=error)
                if number not in self._failed_callbacks:
                    self._failed_callbacks.add(number)
                    warnings.warn(
                        f"`callbacks[{number}]` failed after trial {trial.id}, and the run goes "
                        f"on: {describe(error)}",
                        EvaluationWarning,
                        stacklevel=2,
                    )

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
        self._pools.release(pool)
