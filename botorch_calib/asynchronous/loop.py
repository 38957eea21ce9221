"""The loop of an asynchronous optimiser: what it starts, waits for, repeats and gives up."""

from __future__ import annotations

import contextlib
import logging
import math
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

from botorch_calib.asynchronous.evaluations import (
    End,
    Evaluation,
    Objective,
    Outcome,
    Run,
    read_outcome,
)
from botorch_calib.asynchronous.pools import PoolSupply, WorkerPool
from botorch_calib.asynchronous.progress import ProgressBar
from botorch_calib.exceptions import EvaluationError, EvaluationWarning, TrialStateError
from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.trials import Trial, TrialStatus

logger = logging.getLogger(__name__)

# The longest wait in seconds: some platforms notice ctrl-C only when a wait ends.
TICK = 1.0


@dataclass(frozen=True)
class RunSettings:
    """The arguments of an `AsynchronousOptimizer`, checked; see there."""

    objective: Objective
    ledger: FeedbackLedger
    propose: Callable[[FeedbackLedger], Tensor]
    max_parallel: int
    timeout: float | None
    max_retries: int
    max_consecutive_failures: int
    maximize: bool
    progress: bool
    resume: str


def is_resolved(trial: Trial) -> bool:
    """Whether a trial needs no evaluation: its value has come, in time or not, or never will."""
    return trial.y is not None or trial.status is TrialStatus.FAILED


class EvaluationLoop:
    """One run of an `AsynchronousOptimizer`.

    Args:
        settings: What to run, and how.
        pools: Where to run it.
        num_evaluations: Number of trials of the ledger to resolve, earlier ones included.
    """

    def __init__(self, settings: RunSettings, pools: PoolSupply, num_evaluations: int) -> None:
        self._settings = settings
        self._ledger = settings.ledger
        self._pools = pools
        self._goal = num_evaluations
        self._num_trials = 0
        self._unresolved: set[int] = set()
        # What this run has resolved, even if the ledger does not show it yet: the system's clock
        # may have been set back.
        self._settled: set[int] = set()
        self._best: Trial | None = None
        self._take_stock()
        # To be started before anything new: what an earlier run or a dead worker left behind.
        self._waiting = deque(Evaluation(trial) for trial in self._left_behind())
        self._running: dict[Future[Any], Run] = {}
        # Timed out, but in possession of a worker until they return.
        self._overdue: set[Future[Any]] = set()
        # Weak, and nothing else may keep a future that is settled: if the worker dies that holds
        # its result, Dask evaluates it again.
        self._arrivals: weakref.WeakKeyDictionary[Future[Any], float] = weakref.WeakKeyDictionary()
        # Written to from other threads. Unlike `concurrent.futures.wait`, a wait for this queue
        # leaves no lock taken when ctrl-C interrupts it.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._num_failures_in_a_row = 0
        self._has_warned = False
        self._bar = ProgressBar(settings.progress, num_evaluations, self._num_resolved)

    def run(self) -> None:
        """Evaluate until the goal is reached; whatever happens, clean up."""
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
        """Write down what has arrived, then start one evaluation or wait; False at the end."""
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

    # Starting and waiting

    def _left_behind(self) -> list[Trial]:
        """Trials that an earlier run has left pending, as many as are needed."""
        if self._settings.resume == "keep":
            return []
        pending = [t for t in self._ledger.trials if t.status is TrialStatus.PENDING]
        return pending[: max(self._goal - self._num_resolved, 0)]

    def _take_stock(self) -> None:
        """Count what is resolved, by other processes too."""
        ledger = self._ledger.snapshot()
        known = {*self._unresolved, *range(self._num_trials, len(ledger))} - self._settled
        self._num_trials = len(ledger)
        # What is resolved stays so: there is no need to look at it again.
        self._unresolved = {trial for trial in known if not is_resolved(ledger[trial])}
        if self._settings.progress:
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
        # An executor that cannot be made shall cost neither a proposal nor a trial.
        self._pools.acquire(private=False)
        trial_id = self._ledger.submit(self._settings.propose(self._ledger))
        self._start(Evaluation(self._ledger[trial_id]))
        return True

    def _start(self, evaluation: Evaluation) -> None:
        # The objective gets an array of its own, to do with as it likes.
        x = evaluation.trial.x.clone().numpy()
        pool = self._pools.acquire(private=evaluation.num_losses > 0)
        try:
            future = pool.submit(self._settings.objective, x)
        except BrokenExecutor as error:
            # It broke before it was given this evaluation, which is therefore not lost.
            self._rescue(pool, Outcome(End.LOSS, reason=str(error), error=error))
            pool = self._pools.acquire(private=evaluation.num_losses > 0)
            try:
                future = pool.submit(self._settings.objective, x)
            except BrokenExecutor as again:
                raise EvaluationError(f"A new executor broke at once: {again}") from again
        self._running[future] = Run(evaluation, pool)
        future.add_done_callback(self._on_done)

    def _on_done(self, future: Future[Any]) -> None:
        """Called by the executor, in a thread of its own."""
        self._arrivals[future] = time.time()
        self._wake.put(None)

    def _wait(self) -> None:
        """Wait until an evaluation finishes or is due to time out, but no longer than a tick."""
        patience = TICK
        if self._settings.timeout is not None:
            # An evaluation that waits for a worker may start at any time.
            unseen = self._settings.timeout / 10
            left = self._times_left().values()
            patience = min([TICK, *(unseen if math.isinf(each) else each for each in left)])
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=max(patience, 0.0))
            while True:
                self._wake.get_nowait()

    def _times_left(self) -> dict[Future[Any], float]:
        """Seconds until each evaluation times out; infinite before it starts."""
        timeout, now = self._settings.timeout, time.monotonic()
        if timeout is None:
            return {}
        return {
            future: self._running[future].time_left(future, timeout, now)
            for future in self._in_order(self._running)
        }

    def _stop(self) -> None:
        """Keep the values that are there, cancel what has not started, and kill what is ours."""
        try:
            for future in self._in_order(self._running):
                pool = self._running[future].pool
                # A process pool that is killed must not find futures that were cancelled.
                if not pool.is_killable:
                    future.cancel()
                if not future.done():
                    continue
                # Failures may be due to the interrupt: they are left to a resumed run.
                outcome = read_outcome(future, pool)
                if outcome.end is End.VALUE:
                    with contextlib.suppress(Exception):
                        self._observe(future, outcome.value)
            self._forget_overdue()
        finally:  # a second ctrl-C must not leave processes behind either
            self._pools.close(wait=False, kill=True)

    def _forget_overdue(self) -> None:
        """Have Dask forget what it would run again if a worker died."""
        self._overdue = {future for future in self._overdue if not future.cancel()}

    # What has arrived

    def _collect(self) -> None:
        """Write down all values that have arrived, and give up what takes too long."""
        self._overdue = {future for future in self._overdue if not future.done()}
        while done := self._in_order(future for future in self._running if future.done()):
            for future in done:
                if future in self._running:  # not lost with an earlier one of its pool
                    self._settle(future)
        self._time_out()

    def _in_order(self, futures: Iterable[Future[Any]]) -> list[Future[Any]]:
        return sorted(futures, key=lambda future: self._running[future].trial.id)

    def _settle(self, future: Future[Any]) -> None:
        """Write down what a finished evaluation has brought, or have a lost one run again."""
        run = self._running[future]
        outcome = read_outcome(future, run.pool)
        if outcome.end is End.INTERRUPT:
            raise KeyboardInterrupt from outcome.error
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
            # It may have come long ago, while the next query was being chosen.
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
        if self._num_failures_in_a_row >= self._settings.max_consecutive_failures:
            raise EvaluationError(
                f"{self._num_failures_in_a_row} trials in a row failed, the last one, trial "
                f"{trial.id}, with: {reason}"
            ) from error

    @contextlib.contextmanager
    def _if_unresolved(self, trial: Trial) -> Iterator[None]:
        """Accept that someone else has resolved the trial, another process for example."""
        try:
            yield
        except TrialStateError as error:
            logger.warning("The result of trial %d was not needed: %s", trial.id, error)

    # What is lost or late

    def _lose(self, evaluation: Evaluation, outcome: Outcome) -> None:
        """Have a lost trial run again, or fail it if that has happened often enough."""
        evaluation.num_losses += 1
        if evaluation.num_losses > self._settings.max_retries:
            times = "once" if evaluation.num_losses == 1 else f"{evaluation.num_losses} times"
            self._fail(evaluation.trial, f"{outcome.reason} (it was run {times})", outcome.error)
        else:
            logger.warning("Trial %d runs again: %s", evaluation.trial.id, outcome.reason)
            self._waiting.append(evaluation)

    def _rescue(self, pool: WorkerPool, loss: Outcome | None) -> None:
        """Kill a pool and have the evaluations that were lost with it run again.

        Args:
            pool: The pool.
            loss: Why it broke, which counts as a loss of each of them; None if it was sound.
        """
        self._pools.discard(pool, loss.error if loss else None)
        members = self._in_order(f for f, run in self._running.items() if run.pool is pool)
        # Others have finished before, and are collected as usual.
        lost = [f for f in members if not f.done() or read_outcome(f, pool).end is End.LOSS]
        evaluations = [self._running.pop(future).evaluation for future in lost]
        if loss is None:
            self._waiting.extend(evaluations)
            return
        for evaluation in evaluations:
            self._lose(evaluation, loss)

    def _time_out(self) -> None:
        """Fail the trials that take too long and free their workers where that is possible."""
        late = [future for future, left in self._times_left().items() if left <= 0.0]
        runs = {future: self._running.pop(future) for future in late}
        for future, run in runs.items():
            self._free(future, run.pool)
        for run in runs.values():
            self._fail(run.trial, f"timed out after {self._settings.timeout:.6g} seconds", None)
        if not self._overdue.isdisjoint(late) and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "An evaluation that has timed out cannot be ended and keeps its worker until it "
                "returns. Processes can be ended if `executor` is a function that makes one.",
                EvaluationWarning,
                stacklevel=2,
            )

    def _free(self, future: Future[Any], pool: WorkerPool) -> None:
        """End a late evaluation if its executor can, else remember that its worker is busy."""
        if pool.is_killable:
            if not pool.is_killed:
                self._rescue(pool, loss=None)
            return
        if not pool.free(future):
            self._overdue.add(future)
        self._pools.release(pool, wait=future not in self._overdue)
