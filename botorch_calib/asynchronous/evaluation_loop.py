"""The loop of an asynchronous optimizer: it starts, awaits and records evaluations."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import signal
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from botorch_calib.asynchronous.evaluation_limits import EvaluationLimits
from botorch_calib.asynchronous.evaluation_outcomes import End, Outcome, describe, read_outcome
from botorch_calib.asynchronous.progress import ProgressBar
from botorch_calib.asynchronous.workers import Workers
from botorch_calib.exceptions import EvaluationError, EvaluationWarning, TrialStateError
from botorch_calib.ledger.ledger import DecidedQuery, FeedbackLedger
from botorch_calib.ledger.trials import Trial, TrialStatus

logger = logging.getLogger(__name__)

# Told of each evaluation that has ended; True ends the run.
Callback = Callable[[FeedbackLedger, Trial], object]

# Given the ledger, whether to start nothing more.
Stop = Callable[[FeedbackLedger], object]

# The longest wait in seconds; some platforms notice ctrl-C only when a wait ends.
TICK = 1.0


@dataclass(frozen=True)
class RunSettings:
    """The checked arguments of an `AsynchronousOptimizer`, except for where evaluations run."""

    ledger: FeedbackLedger
    propose: Callable[[FeedbackLedger], Tensor | DecidedQuery]
    max_parallel: int
    limits: EvaluationLimits
    resume: str
    callbacks: Sequence[Callback]


@dataclass(eq=False)
class Evaluation:
    """A trial that is evaluated."""

    trial: Trial
    num_losses: int = 0
    started: float | None = None  # when it was first seen to run, on the monotonic clock
    is_recorded: bool = False


class _TimeIsOver(Exception):
    """A query was chosen when it was too late to evaluate it."""


class EvaluationLoop:
    """One run of an `AsynchronousOptimizer`.

    It ends once the ledger holds ``goal`` resolved trials. It starts nothing more after the
    ``deadline`` on the monotonic clock, or once ``stop`` returns something true.
    """

    #: Whether ``stop`` has ended the run.
    stopped = False

    def __init__(
        self,
        settings: RunSettings,
        workers: Workers,
        goal: float,
        deadline: float,
        progress: bool,
        stop: Stop | None = None,
    ) -> None:
        self._settings = settings
        self._limits = settings.limits
        self._ledger = settings.ledger
        self._workers = workers
        self._goal = goal
        self._deadline = deadline
        self._stop_rule = stop
        self._num_judged = 0  # resolved trials when the rule was asked last
        self._failed_callbacks: set[int] = set()
        # Trials that an earlier run has left behind.
        left = self._ledger.trials if settings.resume == "rerun" else ()
        self._left = deque(trial.id for trial in left if _is_pending(trial))
        # Lost with their worker, and to be run again.
        self._lost: deque[Evaluation] = deque()
        # No settled future: Dask evaluates it again if the worker that holds its result dies.
        self._running: dict[Future[Any], Evaluation] = {}
        # Timed out, but occupying a worker until they return.
        self._overdue: set[Future[Any]] = set()
        # Values are recorded by this thread and by those of the executor.
        self._recording = threading.Lock()
        self._has_ended = False
        # Unlike `concurrent.futures.wait`, waiting for it holds no lock that ctrl-C could leave.
        self._wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._num_failures_in_a_row = 0
        self._has_warned = False
        # Trials that failed or have a value, in time or late, and so they stay.
        self._resolved: set[int] = set()
        self._look_for_resolved()
        self._bar = ProgressBar(
            total=goal,
            initial=len(self._resolved),
            desc="evaluations",
            miniters=0,  # a change of the postfix alone is drawn as well
            disable=not progress,
        )

    def run(self) -> None:
        """Evaluate until the goal is reached; clean up in any case."""
        with contextlib.closing(self._bar), termination_as_exit():
            try:
                while self._advance():
                    pass
                self._workers.close(kill=False)
            except BaseException:
                self._stop()
                raise
            finally:
                with self._recording:
                    self._has_ended = True

    def _advance(self) -> bool:
        """Record arrivals, then start one evaluation or wait; False at the end."""
        if self._running:  # before outcomes are read: evaluations that a cluster lost did not fail
            self._workers.check()
        self._collect()
        self._look_for_resolved()
        self._ask_whether_to_stop()
        has_started = self._start_next()
        self._bar.show(len(self._resolved), len(self._running), self._ledger)
        if has_started:
            return True
        is_complete = not self._lost and len(self._resolved) >= self._goal
        if not self._running and (is_complete or self._is_over()):
            return False
        self._wait()
        return True

    def _is_over(self) -> bool:
        """Whether no evaluation may start any more, whatever the goal."""
        return time.monotonic() >= self._deadline

    def _look_for_resolved(self) -> None:
        """Among those that were not: looking at all trials would take longest of all here."""
        for trial_id in set(range(len(self._ledger))) - self._resolved:
            trial = self._ledger[trial_id]
            if trial.y is not None or trial.status is TrialStatus.FAILED:
                self._resolved.add(trial_id)

    def _ask_whether_to_stop(self) -> None:
        """After arrivals and, with a ledger of an earlier run, at the start."""
        if self._stop_rule is None or self._is_over() or len(self._resolved) == self._num_judged:
            return
        self._num_judged = len(self._resolved)
        if self._stop_rule(self._ledger):
            self.stopped, self._deadline = True, -math.inf

    # ------------------------------------------------------------ starting and waiting

    def _start_next(self) -> bool:
        """Start one evaluation if a slot is free and it is needed, else return False."""
        is_full = len(self._running) + len(self._overdue) >= self._settings.max_parallel
        if is_full or self._is_over():
            return False
        # Evaluations that were lost together run alone: each may have killed their worker.
        is_alone = any(evaluation.num_losses for evaluation in self._running.values())
        if self._workers.shares_deaths and (is_alone or (self._lost and self._running)):
            return False
        if self._lost:
            self._start(self._lost.popleft())
            return True
        under_way = {evaluation.trial.id for evaluation in self._running.values()}
        if len(self._resolved | under_way) >= self._goal:
            return False
        # Before a query is chosen, which is in vain without a worker; a process starts meanwhile.
        self._workers.prepare()
        trial = self._next_trial()
        if trial is not None:
            self._start(Evaluation(trial))
        return trial is not None

    def _next_trial(self) -> Trial | None:
        """A trial that an earlier run has left behind, or a new one; None if it is too late."""
        while self._left:
            trial = self._ledger[self._left.popleft()]
            if _is_pending(trial):
                return trial
        try:
            return self._ledger.ask(self._propose)
        except _TimeIsOver:
            return None

    def _propose(self, ledger: FeedbackLedger) -> Tensor | DecidedQuery:
        x = self._settings.propose(ledger)
        if self._is_over():
            raise _TimeIsOver
        return x

    def _start(self, evaluation: Evaluation) -> None:
        # The objective may modify its array.
        x = evaluation.trial.x.clone().numpy()
        future = self._workers.submit(x, alone=evaluation.num_losses > 0)
        evaluation.started = None
        self._running[future] = evaluation
        future.add_done_callback(partial(self._on_done, evaluation))

    def _on_done(self, evaluation: Evaluation, future: Future[Any]) -> None:
        """Record a value, as the loop may be choosing a query for minutes, and wake the loop.

        Called in a thread of the executor; after an error here the loop tries again.
        """
        try:
            outcome = read_outcome(future, self._workers.cause_of_death)
            if outcome.end is End.VALUE:
                self._record(evaluation, outcome)
        except Exception as error:
            logger.debug("Trial %d is recorded later: %s", evaluation.trial.id, error)
        finally:
            self._wake.put(None)

    def _wait(self) -> None:
        """Wait until an evaluation finishes or may time out, at most for a tick."""
        waits = [TICK]
        if not self._is_over():
            waits.append(self._deadline - time.monotonic())
        if self._limits.timeout is not None:
            # The start of an evaluation is noticed with a delay of up to a tenth of the timeout.
            unseen = self._limits.timeout / 10
            left = self._seconds_left().values()
            waits.extend(unseen if math.isinf(each) else each for each in left)
        with contextlib.suppress(queue.Empty):
            self._wake.get(timeout=max(min(waits), 0.0))
            while True:
                self._wake.get_nowait()

    def _seconds_left(self) -> dict[Future[Any], float]:
        """Seconds until each evaluation times out, infinite before it starts."""
        if self._limits.timeout is None:
            return {}
        now, left = time.monotonic(), {}
        for future, evaluation in self._running.items():
            if evaluation.started is None and self._workers.has_started(future):
                evaluation.started = now
            started = math.inf if evaluation.started is None else evaluation.started
            left[future] = started + self._limits.timeout - now
        return left

    def _stop(self) -> None:
        """Record values that have arrived, and end the workers."""
        try:
            for future in self._finished():
                # Failures may be due to the interrupt: a resumed run evaluates them again.
                outcome = read_outcome(future, self._workers.cause_of_death)
                if outcome.end is not End.VALUE:
                    continue
                evaluation = self._running[future]
                try:
                    self._record(evaluation, outcome)
                except Exception as error:  # the value may have cost hours
                    logger.error(
                        "The value %r of trial %d could not be recorded: `tell` the ledger%s, or "
                        "the trial is evaluated again. %s",
                        outcome.value,
                        evaluation.trial.id,
                        f" with {outcome.beside}" if outcome.beside else "",
                        error,
                    )
        finally:  # a second ctrl-C must not leave processes behind either
            self._workers.close(kill=True)

    # ------------------------------------------------------------ arrivals

    def _collect(self) -> None:
        """Settle finished evaluations, and give up late ones."""
        self._overdue = {future for future in self._overdue if not future.done()}
        while finished := self._finished():
            for future in finished:
                self._settle(future)
        self._time_out()

    def _finished(self) -> list[Future[Any]]:
        """Finished evaluations, in the order of their trials."""
        finished = (future for future in self._running if future.done())
        return sorted(finished, key=lambda future: self._running[future].trial.id)

    def _settle(self, future: Future[Any]) -> None:
        """Record the outcome of a finished evaluation; a lost one is run again."""
        outcome = read_outcome(future, self._workers.cause_of_death)
        if outcome.end is End.INTERRUPT:
            raise KeyboardInterrupt from outcome.error
        if outcome.end is End.LOSS:
            self._workers.make_room(future, outcome.error)
        if outcome.end is End.VALUE:
            try:
                self._record(self._running[future], outcome)
                self._num_failures_in_a_row = 0
            except (InputDataError, BotorchTensorDimensionError) as error:
                outcome = Outcome.refused(error)  # such as outcomes of other decisions
        evaluation = self._running.pop(future)
        if outcome.end is End.VALUE:
            self._call_back(evaluation.trial)
        elif outcome.end is End.FAILURE:
            self._fail(evaluation.trial, outcome.reason, outcome.error)
        else:
            self._lose(evaluation, outcome)

    def _record(self, evaluation: Evaluation, outcome: Outcome) -> None:
        """Write a value to the ledger, once, and not after the run has ended."""
        with self._recording:
            if evaluation.is_recorded or self._has_ended:
                return
            with self._if_unresolved(evaluation.trial):
                self._ledger.tell(evaluation.trial.id, outcome.value, **outcome.beside)
            evaluation.is_recorded = True

    @contextlib.contextmanager
    def _if_unresolved(self, trial: Trial) -> Iterator[None]:
        """Accept that the trial was resolved by others, for example by hand."""
        try:
            yield
        except TrialStateError as error:
            logger.warning("The result of trial %d was not needed: %s", trial.id, error)

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
        """Tell callbacks that an evaluation has ended, and warn of their errors."""
        for number, callback in enumerate(self._settings.callbacks):
            try:
                if callback(self._ledger, self._ledger[trial.id]) is True:
                    self._deadline = -math.inf
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

    # ------------------------------------------------------------ lost or late

    def _lose(self, evaluation: Evaluation, outcome: Outcome) -> None:
        """Run a lost trial again, or fail it if it was lost too often."""
        evaluation.num_losses += 1
        if evaluation.num_losses > self._limits.max_retries:
            times = "once" if evaluation.num_losses == 1 else f"{evaluation.num_losses} times"
            self._fail(evaluation.trial, f"{outcome.reason} (it was run {times})", outcome.error)
        else:
            logger.warning("Trial %d runs again: %s", evaluation.trial.id, outcome.reason)
            self._lost.append(evaluation)

    def _time_out(self) -> None:
        """Fail late trials, and free their workers where possible."""
        late = [future for future, left in self._seconds_left().items() if left <= 0.0]
        evaluations = [self._running.pop(future) for future in late]
        overdue = {future for future in late if not self._workers.end(future)}
        self._overdue |= overdue
        for evaluation in evaluations:
            reason = f"timed out after {self._limits.timeout:.6g} seconds"
            self._fail(evaluation.trial, reason, None)
        if overdue and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "An evaluation that has timed out cannot be ended and keeps its worker until it "
                "returns. The processes of `workers` can be ended, and so can the workers of Dask "
                "if `executor` is a function that makes one.",
                EvaluationWarning,
                stacklevel=2,
            )


def _is_pending(trial: Trial) -> bool:
    return trial.status is TrialStatus.PENDING


@contextlib.contextmanager
def termination_as_exit() -> Iterator[None]:
    """Let SIGTERM, like ctrl-C, end the main thread: by ``SystemExit`` with the shell's status.

    Nothing changes in other threads, or if the program has a handler of its own.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
