"""Limits on evaluations: how long one may take, how often it is retried, when a run gives up."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from botorch_calib._validation import check_count, check_positive
from botorch_calib.asynchronous.worker_pools import WorkerPool


@dataclass(frozen=True)
class EvaluationLimits:
    """When an `AsynchronousOptimizer` gives up an evaluation, a trial or the whole run.

    Args:
        timeout: Longest duration of an evaluation in seconds, or None for no limit.
        max_retries: How often a trial that was lost with its worker is run again.
        max_consecutive_failures: The run stops with an error once this many trials in a row have
            failed.
        evaluations_per_process: Number of evaluations after which a process of ``workers`` is
            replaced by a new one, such as 1 if the objective leaks memory or leaves something
            behind; None to keep it.
        longest_without_workers: The run stops with an error once a Dask cluster has had no workers
            for so many seconds; None to wait for them for ever.

    Raises:
        InputDataError: If one of the times is not positive and finite, ``max_retries`` is not an
            integer of at least 0, or one of the others not one of at least 1.
    """

    timeout: float | None = None
    max_retries: int = 1
    max_consecutive_failures: int = 10
    evaluations_per_process: int | None = None
    longest_without_workers: float | None = 600.0

    def __post_init__(self) -> None:
        for name in ("timeout", "longest_without_workers"):
            if (seconds := getattr(self, name)) is not None:
                object.__setattr__(self, name, check_positive(name, seconds))
        counts = {"max_retries": 0, "max_consecutive_failures": 1}
        if self.evaluations_per_process is not None:
            counts["evaluations_per_process"] = 1
        for name, least in counts.items():
            object.__setattr__(self, name, check_count(name, getattr(self, name), least))


class EvaluationTimer:
    """Measures how long evaluations have run, and decides which of them took too long.

    The time of an evaluation begins when it is first seen to run.

    Args:
        timeout: Longest duration of an evaluation in seconds, or None for no limit.
    """

    def __init__(self, timeout: float | None) -> None:
        self._timeout = timeout
        # On the monotonic clock. Weak, as `EvaluationLoop` must not keep finished futures alive.
        self._started: WeakKeyDictionary[Future[Any], float] = WeakKeyDictionary()

    def timed_out(self, running: Mapping[Future[Any], WorkerPool]) -> list[Future[Any]]:
        """Those of the running evaluations, given with their pools, that took too long."""
        return [future for future, left in self._time_left(running).items() if left <= 0.0]

    def patience(self, running: Mapping[Future[Any], WorkerPool], longest: float) -> float:
        """Seconds for which no evaluation can time out, but at most ``longest``.

        Args:
            running: The running evaluations, with their pools.
            longest: An upper limit of the result, in seconds.
        """
        if self._timeout is None:
            return longest
        # An evaluation that waits for a worker may start at any time, and its time must then be
        # measured from soon after: its start is noticed with a delay of a tenth of the timeout.
        unseen = self._timeout / 10
        left = self._time_left(running).values()
        return max(min([longest, *(unseen if math.isinf(each) else each for each in left)]), 0.0)

    def _time_left(self, running: Mapping[Future[Any], WorkerPool]) -> dict[Future[Any], float]:
        """Seconds until each evaluation times out, infinite before it starts."""
        if self._timeout is None:
            return {}
        now = time.monotonic()
        left = dict.fromkeys(running, math.inf)
        for future, pool in running.items():
            if future not in self._started and pool.has_started(future):
                self._started[future] = now
            if future in self._started:
                left[future] = self._started[future] + self._timeout - now
        return left
