"""The loop of the suites on delayed feedback: values arrive rounds after their query, or never.

The rules follow section 6 of Verma, Dai and Low (2022). Time is the number of queries made so far.
The value of a query at time ``s`` with delay ``d`` is known for the choice at time ``t`` if
``d <= min(m, t - s)``. A value with ``d > m`` never arrives. There are 3 random initial points,
observed without delay, and 100 rounds. Delays are Poisson with mean 10, or always 10, and m = 20.
Hyperparameters are fitted to the observed values in every tenth round. All methods of a seed share
the objective, the initial points, and the noise and delay of each query. Outcomes are standardised
and the prior mean is a fitted constant. In the paper the prior mean is zero, which is closer to a
censored value.

As in the paper, regret counts only values that have arrived. Cumulative regret over all queries is
recorded as well.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from botorch.models.model import Model
from torch import Tensor

from benchmarks.delay import objectives
from benchmarks.delay.objectives import DelayedObjective
from benchmarks.framework.rbf_surrogate import RefittedRBF
from benchmarks.framework.replicate import OBSERVE, Record, Replicate, stream_seed
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.sequential import box
from benchmarks.framework.surrogates import Surrogate
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.test_functions.delayed import (
    DelayDistribution,
    FixedDelay,
    PoissonDelay,
    draw_delay,
)

# Numbers of random streams, which must not change, see `framework.replicate`.
DELAYS, INITIAL = 10, 11


@dataclass(frozen=True)
class DelayedTask:
    """An objective to be maximised whose values arrive late.

    Args:
        name: The name, unique within a suite.
        objective: The objective.
        delay: The distribution of delays, in rounds.
        max_wait: Values with longer delays never arrive (m in the paper).
        num_rounds: The number of queries after the initial points.
        num_initial: The number of random initial points, which are observed at once.
        surrogate: Makes the Gaussian process of the methods.
    """

    name: str
    objective: DelayedObjective
    delay: DelayDistribution
    max_wait: int
    num_rounds: int = 100
    num_initial: int = 3
    surrogate: Surrogate = RefittedRBF()


class DelayedStrategy(Protocol):
    """A method that runs on one task with one seed."""

    def fit(self, ledger: FeedbackLedger, step: int) -> Model:
        """The model for the choice of round ``step``."""

    def propose(self, model: Model, ledger: FeedbackLedger, choices: Tensor | None) -> Tensor:
        """The next query, of length ``d``, from ``choices`` if they are given."""


class DelayedMethod(Protocol):
    """Makes a strategy. Its description is part of a result's configuration."""

    @property
    def name(self) -> str:
        """The name, unique within a suite."""

    def start(self, task: DelayedTask, bounds: Tensor) -> DelayedStrategy:
        """The strategy of one replicate; ``bounds`` is the box of the inputs, ``2 x d``."""


def replicate(task: DelayedTask, method: DelayedMethod, seed: int) -> Result:
    """Run ``method`` on ``task``; the result is deterministic, except for wall times."""
    return DelayedReplicate(task, method, seed).run()


class DelayedReplicate(Replicate[DelayedTask, DelayedMethod, Model]):
    """Each round makes one query, whose value arrives some rounds later."""

    def __init__(self, task: DelayedTask, method: DelayedMethod, seed: int) -> None:
        super().__init__(task, method, seed, task.num_rounds)
        self.evaluator = task.objective.build(seed)
        self.bounds = box(task.objective.bounds)
        self.strategy = method.start(task, self.bounds)
        self.ledger = FeedbackLedger(
            self.bounds.shape[-1],
            censor_value=task.objective.censor_value,
            max_wait=task.max_wait,
            late="discard",
            clock="iterations",
        )
        self.in_flight: list[tuple[int, int, float]] = []  # a heap of (arrival, trial, value)
        self.X: list[Tensor] = []
        self.y: list[float] = []
        self.delays: list[int] = []
        for x in self._initial_points(task.num_initial):
            self._query(x, delay=0)

    def prepare(self, step: int) -> None:
        now = len(self.y)
        while self.in_flight and self.in_flight[0][0] <= now:
            arrival, trial, y = heapq.heappop(self.in_flight)
            self.ledger.observe(trial, y, time=arrival)

    def fit(self, step: int) -> Model:
        return self.strategy.fit(self.ledger, step)

    def propose(self, model: Model) -> Tensor:
        return self.strategy.propose(model, self.ledger, self.evaluator.choices)

    def evaluate(self, x: Tensor, model: Model, step: int) -> None:
        drawn = draw_delay(self.problem.delay, x, stream_seed(self.seed, DELAYS), step)
        if drawn != int(drawn):
            raise ValueError(f"Delays are counted in rounds, got {drawn}.")
        self._query(x, int(drawn))

    def _initial_points(self, n: int) -> Tensor:
        """Random points, ``n x d``."""
        rng = np.random.default_rng(stream_seed(self.seed, INITIAL))
        if self.evaluator.choices is not None:
            rows = rng.choice(len(self.evaluator.choices), n, replace=False)
            return self.evaluator.choices[torch.from_numpy(rows)]
        unit = torch.from_numpy(rng.random((n, self.bounds.shape[-1])))
        return self.bounds[0] + (self.bounds[1] - self.bounds[0]) * unit

    def _query(self, x: Tensor, delay: int) -> None:
        index = len(self.y)
        rng = np.random.default_rng(stream_seed(self.seed, OBSERVE, index))
        y = float(self.evaluator.observe(x, rng))
        if not math.isfinite(y):
            raise ValueError(f"The objective returned {y} for {x.tolist()}.")
        trial = self.ledger.submit(x)
        heapq.heappush(self.in_flight, (index + delay, trial, y))
        self.X.append(x)
        self.y.append(y)
        self.delays.append(delay)

    def record(self) -> Record:
        f = [float(self.evaluator.truth(x)) for x in self.X]
        optimum = self.evaluator.optimal_value
        traces = Traces(self.problem, self.y, f, optimum, self.delays)
        best = traces.best_by_outcome()
        return Record(
            num_initial=self.problem.num_initial,
            X=torch.stack(self.X).tolist(),
            y=self.y,
            f=f,
            inference_by_outcome=best,
            regret_by_outcome=[optimum - f[index] for index in best],
            extras=traces.extras(),
        )


@dataclass(frozen=True)
class Traces:
    """Traces of best values and regrets over time.

    Traces have ``num_rounds + 1`` entries: entry ``t`` is the state before the choice of round
    ``t``, and the last entry is the state at the end. Values that have not arrived, or arrive
    later than ``max_wait``, count only in ``cumulative_regret_all``. Initial points count as
    values, but not in cumulative regret.

    Args:
        task: The task.
        y: Outcomes, the initial points first.
        f: Noise-free values.
        optimum: The largest noise-free value.
        delays: Delays, 0 for the initial points.
    """

    task: DelayedTask
    y: Sequence[float]
    f: Sequence[float]
    optimum: float
    delays: Sequence[int]

    @cached_property
    def arrivals(self) -> list[float]:
        """The first round whose choice knows each value; infinity if none, 0 for initial points."""
        n, longest = self.task.num_initial, self.task.max_wait
        waits = [max(d, 1) if d <= longest else math.inf for d in self.delays[n:]]
        return [0.0] * n + [step + wait for step, wait in enumerate(waits)]

    @cached_property
    def known(self) -> np.ndarray:
        """Whether each value was known at each time, ``num_rounds + 1 x num_queries``."""
        times = np.arange(self.task.num_rounds + 1)
        return np.array(self.arrivals) <= times[:, None]

    def best_by_outcome(self) -> list[int]:
        """Index of the largest known value at each time; the first index if several are equal."""
        return np.where(self.known, self.y, -math.inf).argmax(axis=-1).tolist()

    def cumulative_regret(self, counted: np.ndarray) -> list[float]:
        """Sums of the regrets where ``counted``, without initial points."""
        regret = self.optimum - np.array(self.f)
        regret[: self.task.num_initial] = 0.0
        return (counted @ regret).tolist()

    def extras(self) -> dict[str, list[float | None]]:
        """The extras of a result.

        By query, without initial points: ``delay``; ``arrival``, the first round whose choice
        knows the value, if any. By time: ``best_arrived``, the largest known value;
        ``simple_regret``, the optimum minus the largest noise-free value of queries with known
        values; ``cumulative_regret`` of queries with known values; ``cumulative_regret_all`` of
        all queries so far.
        """
        n, rounds = self.task.num_initial, self.task.num_rounds
        made = np.arange(n + rounds) < np.arange(rounds + 1)[:, None] + n
        best = np.where(self.known, self.f, -math.inf).max(axis=-1)
        return {
            "delay": [float(delay) for delay in self.delays[n:]],
            "arrival": [time if math.isfinite(time) else None for time in self.arrivals[n:]],
            "best_arrived": np.where(self.known, self.y, -math.inf).max(axis=-1).tolist(),
            "cumulative_regret": [*self.cumulative_regret(self.known)],
            "cumulative_regret_all": [*self.cumulative_regret(made)],
            "simple_regret": (self.optimum - best).tolist(),
        }


def tasks() -> tuple[DelayedTask, ...]:
    affordable = (objectives.gp_sample(), objectives.svm(), objectives.logistic(), objectives.cnn())
    delays: dict[str, DelayDistribution] = {
        "poisson": PoissonDelay(10.0),
        "fixed": FixedDelay(10.0),
    }
    return tuple(
        DelayedTask(f"{objective.name}_{kind}", objective, delay, max_wait=20)
        for objective in affordable
        for kind, delay in delays.items()
    )
