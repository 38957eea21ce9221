"""Functions whose best value lies in a region in which queries hang until a time-out."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from botorch_calib.asynchronous import DelayAwareProposer, DelayStrategy, SearchSettings
from botorch_calib.ledger import FeedbackLedger

WORKERS, QUERIES, TIMEOUT, LEAST = 4, 40, 30.0, -4.0


def distance(x: Tensor, *centre: float) -> float:
    return float((x - x.new_tensor(centre)).norm())


@dataclass(frozen=True)
class Problem:
    """A function on the unit cube; ``hangs`` within the region, ``best`` outside, rounded down."""

    dim: int
    value: Callable[[Tensor], float]
    hangs: Callable[[Tensor], bool]
    best: float


PROBLEMS = {
    "disc": Problem(
        dim=2,
        value=lambda x: 1.0 - 4.0 * distance(x, 0.6, 0.6) ** 2,
        hangs=lambda x: distance(x, 0.6, 0.6) < 0.2,
        best=0.84,
    ),
    "corner": Problem(
        dim=3,
        value=lambda x: 1.5 - 2.0 * distance(x, 0.9, 0.9, 0.9) ** 2,
        hangs=lambda x: float(x.min()) > 0.6,
        best=1.32,
    ),
}


class Outcome(NamedTuple):
    """The time lost, in units of the time-out, and the gap to the best value outside."""

    time_lost: float
    gap: float


def run(problem: Problem, strategy: DelayStrategy, search: SearchSettings) -> Outcome:
    """Four workers make forty queries, whose lengths are 0.7 to 1.3 but for those that hang."""
    ledger = FeedbackLedger(problem.dim, censor_value=LEAST)
    bounds = [[0.0] * problem.dim, [1.0] * problem.dim]
    propose = DelayAwareProposer(bounds, strategy, search=search)
    lengths = random.Random(0)
    running: list[tuple[float, int]] = []
    now, best = 0.0, -math.inf
    for count in range(QUERIES + WORKERS):
        if count >= WORKERS:
            now, trial = heapq.heappop(running)
            x = ledger[trial].x
            if problem.hangs(x):
                ledger.fail(trial)
            else:
                best = max(best, problem.value(x))
                ledger.observe(trial, problem.value(x))
        if count < QUERIES:
            x = propose(ledger)
            length = TIMEOUT if problem.hangs(x) else lengths.uniform(0.7, 1.3)
            heapq.heappush(running, (now + length, ledger.submit(x)))
    return Outcome((now - QUERIES / WORKERS) / TIMEOUT, problem.best - best)
