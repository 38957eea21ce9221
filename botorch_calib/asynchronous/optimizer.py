"""`AsynchronousOptimizer`: the loop that runs evaluations in parallel."""

from __future__ import annotations

import logging
import math
import queue
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from botorch.exceptions.errors import InputDataError
from pebble import ProcessExpired
from torch import Tensor
from tqdm.auto import tqdm

from botorch_calib._validation import check_count, check_instance, check_positive
from botorch_calib.exceptions import EvaluationError, LedgerError, TrialStateError
from botorch_calib.ledger import DecidedQuery, FeedbackLedger, LedgerSummary, Trial, TrialStatus

logger = logging.getLogger(__name__)

TICK = 1.0  # maximum wait in seconds; on some platforms ctrl-C takes effect only after a wait

# Ledgers of the runs that are under way in this process: the path of a ledger in a file, or the
# ``id()`` of a ledger in memory. A second run with the same ledger raises an error.
_IN_USE: set[Path | int] = set()


class AsynchronousOptimizer:
    """Keeps ``max_parallel`` evaluations running, and records everything in a ledger.

    A query is recorded before the evaluation starts. A value is recorded when it arrives, even
    while the next query is being chosen. A run with a ledger in the same file continues an
    interrupted run.

    **Failures.** A trial fails if the objective raises an exception or returns no value, or if its
    process dies or exceeds the time limit of a `PebbleExecutor`; other trials continue. Other
    process pools, such as a ``ProcessPoolExecutor``, break as a whole when one process dies. If
    ``executor`` is a function, the run then calls it to make a new pool, and the trials that were
    running are evaluated again, one at a time. A trial that breaks a pool a second time fails.

    **How a run ends early.** Ctrl-C, an error in ``propose`` or a lost executor, such as a closed
    Dask client, ends the run with an exception. Trials that were running stay pending, and the next
    run evaluates them again. An executor that the run has made is shut down. A `PebbleExecutor`
    then kills its processes, and other executors finish their evaluations.

    Args:
        executor: A function without arguments that makes a ``concurrent.futures`` executor, such as
            ``partial(PebbleExecutor, 4)``; or an executor, which is neither replaced nor shut down.
            For Dask pass ``client.get_executor(pure=False)``. A process pool must not fork, because
            torch's threads may deadlock: ``ProcessPoolExecutor`` needs
            ``mp_context=multiprocessing.get_context("spawn")``.
        objective: The function to optimize. Its argument is a float64 array of shape ``d``, which
            it may modify. It returns a finite real number (also as a tensor or array of one
            element), or a dict of arguments of `FeedbackLedger.tell`, such as ``"y"`` and
            ``"yvar"``. For process pools the function must be picklable.
        ledger: The ledger in which trials are recorded.
        propose: A function that chooses the next query, such as a `DelayAwareProposer`. It maps the
            ledger to a tensor of shape ``d`` or ``1 x d``, or to a `DecidedQuery`, and is called in
            the thread that calls `run`. If a `DecidedQuery` is for a decision on several outcomes,
            the objective must return the outcomes.
        max_parallel: Maximum number of evaluations that run at the same time.
        max_consecutive_failures: Number of failures in a row after which the run raises an error.
        callbacks: Functions of the ledger and the `Trial` whose evaluation has ended, with a value
            or a failure. They are called in the thread that calls `run`. If a callback returns
            True, no further evaluation starts. Errors in callbacks are logged, and the run
            continues.

    Raises:
        InputDataError: If an argument is malformed.

    Example:
        >>> optimizer = AsynchronousOptimizer(
        ...     partial(ThreadPoolExecutor, 2), lambda x: -((x - 0.3) ** 2).sum(),
        ...     FeedbackLedger(dim=2, maximize=True),
        ...     DelayAwareProposer([[0, 0], [1, 1]]), max_parallel=2,
        ... )
        >>> summary = optimizer.run(num_evaluations=5, progress=False)
    """

    def __init__(
        self,
        executor: Executor | Callable[[], Executor],
        objective: Callable[[np.ndarray], Any],
        ledger: FeedbackLedger,
        propose: Callable[[FeedbackLedger], Tensor | DecidedQuery],
        max_parallel: int,
        max_consecutive_failures: int = 10,
        callbacks: Sequence[Callable[[FeedbackLedger, Trial], object]] = (),
    ) -> None:
        if not isinstance(executor, Executor) and not callable(executor):
            raise InputDataError(
                "`executor` must be a concurrent.futures.Executor or a function that makes one, "
                f"got {type(executor).__name__}."
            )
        for name, function in (("objective", objective), ("propose", propose)):
            if not callable(function):
                raise InputDataError(f"`{name}` must be callable, got {function!r}.")
        if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
            raise InputDataError(f"`callbacks` must be a sequence of functions, got {callbacks!r}.")
        self.executor, self.objective, self.propose = executor, objective, propose
        self.ledger: FeedbackLedger = check_instance("ledger", ledger, FeedbackLedger)
        self.max_parallel = check_count("max_parallel", max_parallel)
        most = check_count("max_consecutive_failures", max_consecutive_failures)
        self.max_consecutive_failures = most
        self.callbacks = tuple(callbacks)

    def run(
        self,
        num_evaluations: int | None = None,
        progress: bool = True,
        seconds: float | None = None,
    ) -> LedgerSummary:
        """Run evaluations until the ledger has enough resolved trials or the time is up.

        A trial is resolved when it has failed or its value has arrived, even if the value arrived
        too late to be used. Evaluations that have started before the time is up are completed.

        Args:
            num_evaluations: Number of resolved trials in the ledger at which the run ends,
                including trials of earlier runs (None: no limit).
            progress: Whether to show a progress bar.
            seconds: Time in seconds after which no evaluation starts (None: no limit).

        Returns:
            The ledger's best trial, and the number of trials in each state.

        Raises:
            BotorchError: If both limits are None, or an argument or a proposed query is malformed.
            LedgerError: If another run in this process uses the ledger, or a value cannot be
                recorded (the value is logged).
            EvaluationError: If too many trials in a row fail, workers cannot evaluate the
                objective, or the executor is lost and cannot be replaced.
        """
        if num_evaluations is None and seconds is None:
            raise InputDataError("Give `num_evaluations`, `seconds` or both, to end the run.")
        goal, deadline = math.inf, math.inf
        if num_evaluations is not None:
            goal = check_count("num_evaluations", num_evaluations)
        if seconds is not None:
            deadline = time.monotonic() + check_positive("seconds", seconds)
        used = self.ledger.path or id(self.ledger)
        if used in _IN_USE:
            raise LedgerError("Another run in this process uses the `ledger`: wait until it ends.")
        _IN_USE.add(used)
        try:
            _Run(self, goal, deadline, progress).evaluate()
        finally:
            _IN_USE.remove(used)
        return self.ledger.summary()


class _Run:
    """One call of `AsynchronousOptimizer.run`.

    The run ends when the ledger has ``goal`` resolved trials, and starts no evaluation after
    ``deadline``, a time of ``time.monotonic()``. Both limits may be infinite.
    """

    def __init__(
        self, optimizer: AsynchronousOptimizer, goal: float, deadline: float, progress: bool
    ) -> None:
        self._optimizer, self._ledger = optimizer, optimizer.ledger
        self._goal, self._deadline = goal, deadline
        self._is_given = isinstance(optimizer.executor, Executor)
        self._executor: Any = optimizer.executor if self._is_given else None
        self._running: dict[Future[Any], Trial] = {}
        # Futures of ended evaluations and their errors (or None), added by the executor's threads.
        # The main thread waits for this queue, because ctrl-C may interrupt `SimpleQueue.get`
        # safely, while an interrupted `concurrent.futures.wait` may leave a lock locked.
        self._ended: queue.SimpleQueue[tuple[Future[Any], Any]] = queue.SimpleQueue()
        # Trials to evaluate before new ones are chosen; initially, pending trials of earlier runs.
        self._waiting = deque(t for t in self._ledger if t.status is TrialStatus.PENDING)
        # Ids of trials that were running when an executor broke. One of these trials may have
        # broken it, so they are evaluated one at a time.
        self._suspects: set[int] = set()
        self._num_failures_in_a_row = 0
        self._resolved: set[int] = set()
        self._look_for_resolved()
        self._bar = tqdm(total=goal, initial=len(self._resolved), disable=not progress)

    def evaluate(self) -> None:
        is_complete = False
        try:
            self._open_executor()
            while self._advance():
                pass
            is_complete = True
        finally:
            self._bar.close()
            for future in self._running:
                future.cancel()
            if self._executor is not None and not self._is_given:
                self._shut_down(wait=is_complete)

    def _advance(self) -> bool:
        """Process ended evaluations, then start an evaluation or wait until one ends.

        The wait takes at most `TICK` seconds. Return False if the run has ended, else True.
        """
        while not self._ended.empty():
            self._settle(*self._ended.get())
        self._look_for_resolved()
        self._show()
        if self._may_start():
            self._start()
            return True
        if not self._running:
            return False
        with suppress(queue.Empty):
            self._settle(*self._ended.get(timeout=TICK))
        return True

    def _look_for_resolved(self) -> None:
        """Refresh the record of resolved and waiting trials.

        Users may also resolve trials by hand.
        """
        for trial_id in set(range(len(self._ledger))) - self._resolved:
            trial = self._ledger[trial_id]
            if trial.y is not None or trial.status is TrialStatus.FAILED:
                self._resolved.add(trial_id)
        self._waiting = deque(t for t in self._waiting if t.id not in self._resolved)

    def _show(self) -> None:
        best = self._ledger.best()
        values = {} if best is None else {"best": f"{best.y:.6g}"}
        self._bar.set_postfix({**values, "running": len(self._running)}, refresh=False)
        self._bar.update(len(self._resolved) - self._bar.n)

    def _may_start(self) -> bool:
        """Whether a worker is free and the limits allow another evaluation."""
        under_way = {trial.id for trial in self._running.values()}
        if time.monotonic() >= self._deadline or len(self._resolved | under_way) >= self._goal:
            return False
        if self._suspects & (under_way | {trial.id for trial in self._waiting}):
            return not under_way  # suspects run alone, to find out which trial breaks an executor
        return len(under_way) < self._optimizer.max_parallel

    def _start(self) -> None:
        optimizer = self._optimizer
        trial = self._waiting.popleft() if self._waiting else self._ledger.ask(optimizer.propose)
        # The objective gets a copy of the query, as it may modify its argument.
        future = self._submit(optimizer.objective, trial.x.clone().numpy())
        self._running[future] = trial
        future.add_done_callback(partial(self._on_done, trial))

    def _submit(self, *call: Any) -> Future[Any]:
        """Submit a ``call``, a function and its arguments, to the executor; return its future.

        If the executor is lost, it is replaced, or ``EvaluationError`` is raised if it was not made
        by this run.
        """
        try:
            return self._executor.submit(*call)
        except Exception as error:
            # In Python 3.11, a worker that was starting while the pool broke never ends by itself,
            # so it is terminated here.
            workers = getattr(self._executor, "_processes", None)
            if isinstance(error, BrokenExecutor) and isinstance(workers, dict):
                for worker in [*workers.values()]:
                    worker.terminate()
            if self._is_given:
                raise EvaluationError(
                    f"The `executor` is lost ({_describe(error)}) and cannot be replaced: give a "
                    "function that makes one. Trials that were running stay pending."
                ) from error
        self._shut_down(wait=False)
        self._open_executor()
        return self._executor.submit(*call)

    def _shut_down(self, wait: bool) -> None:
        with suppress(Exception):  # a lost executor may raise errors, as with a closed Dask client
            self._executor.shutdown(wait=wait)

    def _open_executor(self) -> None:
        """Make an executor, unless one is given; check that its workers can load the objective.

        If they cannot, ``EvaluationError`` is raised.
        """
        if not self._is_given:
            made = self._optimizer.executor()  # type: ignore[operator]
            self._executor = check_instance("executor()", made, Executor)
        try:
            self._executor.submit(callable, self._optimizer.objective).result()
        except Exception as error:
            raise EvaluationError(
                f"Workers cannot evaluate the `objective` ({_describe(error)}). Processes must be "
                "able to import it: define it at the top level of a module, and put the main "
                "script's own code under `if __name__ == '__main__':`."
            ) from error

    def _on_done(self, trial: Trial, future: Future[Any]) -> None:
        """Record the value of an ended evaluation, in the executor's thread.

        The value is recorded here, because the main thread may be busy for a long time. An error is
        left to the main thread, which must end the run if the cause is ctrl-C.
        """
        try:
            result = future.result()
        except BaseException as error:
            self._ended.put((future, error))
        else:
            self._ended.put((future, self._record(trial, result)))

    def _record(self, trial: Trial, result: object) -> Exception | None:
        """Record the objective's result if the trial is unresolved.

        Return None, or the error if the result cannot be recorded, such as a malformed result.
        """
        arguments = result if isinstance(result, Mapping) else {"y": result}
        try:
            self._ledger.tell(trial.id, **arguments)
        except TrialStateError as error:  # already resolved, for example by hand
            logger.warning("The value of trial %d was not needed: %s", trial.id, error)
        except Exception as error:
            if isinstance(error, LedgerError):  # the value may have taken hours to compute
                logger.error(
                    "Record the value of trial %d by hand, %r: %s", trial.id, arguments, error
                )
            return error
        return None

    def _settle(self, future: Future[Any], error: BaseException | None) -> None:
        """Handle an ended evaluation, whose value, if any, has already been recorded.

        ``error`` is the exception that the evaluation or the recording raised, or None.
        """
        trial = self._running.pop(future)
        if isinstance(error, KeyboardInterrupt):
            raise error
        if isinstance(error, CancelledError):
            raise EvaluationError(
                "The `executor` has cancelled its evaluations. Was it shut down, or its Dask "
                "client closed? Trials that were running stay pending."
            ) from error
        # The objective may raise a `LedgerError` as well, by a ledger of its own: then it fails.
        if isinstance(error, LedgerError) and future.exception() is None:
            raise error
        if isinstance(error, BrokenExecutor) and trial.id not in self._suspects:
            logger.warning("Trial %d runs again: %s", trial.id, _describe(error))
            self._suspects.add(trial.id)
            self._waiting.appendleft(trial)
            self._submit(callable, None)  # a call without effect, which replaces a broken executor
            return
        self._resolved.add(trial.id)  # even if its `time` hides the value until later
        if error is None:
            self._num_failures_in_a_row = 0
        else:
            self._num_failures_in_a_row += 1
            logger.warning("Trial %d failed: %s", trial.id, _describe(error))
            with suppress(TrialStateError):  # already resolved, for example by hand
                self._ledger.fail(trial.id, _describe(error))
        for callback in self._optimizer.callbacks:
            try:
                answer = callback(self._ledger, self._ledger[trial.id])
                is_flag = str(getattr(answer, "dtype", type(answer).__name__)).endswith("bool")
                if is_flag and answer:  # other types, such as a count, do not end the run
                    self._deadline = -math.inf
            except Exception:
                logger.exception("A callback failed after trial %d", trial.id)
        if self._num_failures_in_a_row >= self._optimizer.max_consecutive_failures:
            raise EvaluationError(
                f"{self._num_failures_in_a_row} trials in a row failed, the last one, trial "
                f"{trial.id}, with: {_describe(error)}"
            ) from error


def _describe(error: BaseException | None) -> str:
    """Describe an exception in one line, even if reading the message fails."""
    kind = type(error).__name__
    if isinstance(error, ProcessExpired):
        code = error.exitcode  # a `PebbleExecutor` reports 0 as 256
        return f"{kind}: exit code {code % 256 if code > 0 else code}"
    try:
        return f"{kind}: {error}"
    except Exception:
        return f"{kind}: its message cannot be read"
