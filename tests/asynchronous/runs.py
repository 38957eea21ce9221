"""Helpers for tests of the asynchronous optimizer and of its proposer."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from torch import Tensor

from botorch_calib.asynchronous import AsynchronousOptimizer
from botorch_calib.ledger import DecidedQuery, FeedbackLedger, LedgerSummary, TrialStatus
from tests.gps import DOUBLE

BOUNDS = torch.tensor([[-1.0, 0.0], [1.0, 5.0]], **DOUBLE)
CENSOR = -2.0


def fit(X: Tensor, Y: Tensor) -> SingleTaskGP:
    """A model in the box with set hyperparameters."""
    gp = SingleTaskGP(
        X, Y, input_transform=Normalize(2, bounds=BOUNDS), outcome_transform=Standardize(1)
    )
    gp.covar_module.lengthscale = 0.4
    gp.likelihood.noise = 1e-3
    return gp.eval()


def count_up(ledger: FeedbackLedger) -> Tensor:
    """Proposes the number of the query, so that objectives can identify the trial."""
    return torch.tensor([float(len(ledger))], dtype=torch.double)


class Quiet(AsynchronousOptimizer):
    """By default without a progress bar."""

    def run(
        self,
        num_evaluations: int | None = None,
        progress: bool = False,
        seconds: float | None = None,
    ) -> LedgerSummary:
        return super().run(num_evaluations, progress, seconds)


def make_optimizer(
    executor: Executor | Callable[[], Executor],
    objective: Callable[[np.ndarray], Any],
    ledger: FeedbackLedger,
    propose: Callable[[FeedbackLedger], Tensor | DecidedQuery] = count_up,
    max_parallel: int = 1,
    **kwargs: Any,
) -> AsynchronousOptimizer:
    return Quiet(executor, objective, ledger, propose, max_parallel, **kwargs)


def ids(ledger: FeedbackLedger, status: str) -> list[int]:
    return [trial.id for trial in ledger.trials if trial.status == TrialStatus(status)]


def observed(ledger: FeedbackLedger) -> dict[int, float | None]:
    return {trial.id: trial.y for trial in ledger.trials if trial.status == "observed"}


def squares(*queries: int) -> dict[int, float]:
    return {query: float(query**2) for query in queries}


def processes(max_workers: int, **kwargs: Any) -> Callable[[], ProcessPoolExecutor]:
    """A function that makes a process pool of the standard library."""
    context = get_context("spawn")
    return functools.partial(ProcessPoolExecutor, max_workers, mp_context=context, **kwargs)


class Inline(Executor):
    """Evaluates within `submit`: its futures are always done."""

    def __init__(self) -> None:
        self.num_calls = 0
        self.is_shut_down = False

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.num_calls += fn is not callable  # not the call by which an optimizer tests an executor
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:
            future.set_exception(error)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self.is_shut_down = True


class Held(Inline):
    """Evaluates the oldest query once ``number`` queries wait, and all of them at the end."""

    def __init__(self, number: int, total: int) -> None:
        super().__init__()
        self.number, self.num_missing = number, total
        self.waiting: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if fn is callable:
            return super().submit(fn, *args)
        future: Future[Any] = Future()
        self.waiting.append((future, functools.partial(fn, *args, **kwargs)))
        self.num_missing -= 1
        while self.waiting and (len(self.waiting) == self.number or self.num_missing == 0):
            first, call = self.waiting.pop(0)
            try:
                first.set_result(call())
            except Exception as error:
                first.set_exception(error)
        return future


class Threads(ThreadPoolExecutor):
    """Threads whose futures a test can wait for, in order of submission."""

    def __init__(self, max_workers: int) -> None:
        super().__init__(max_workers)
        self.futures: list[Future[Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = super().submit(fn, *args, **kwargs)
        if fn is not callable:
            self.futures.append(future)
        return future


class Gates:
    """An objective, minus the query, that returns when its gate is opened."""

    def __init__(self) -> None:
        self.events: dict[int, threading.Event] = {}

    def __call__(self, x: np.ndarray) -> float:
        assert self.of(int(x[0])).wait(60), "nobody opened the gate"
        return -float(x[0])

    def open(self, *trials: int) -> None:
        for trial in trials:
            self.of(trial).set()

    def of(self, trial: int) -> threading.Event:
        # At once, unlike a defaultdict, with which two threads may make one event each.
        return self.events.setdefault(trial, threading.Event())
