"""The loop of the suites with contexts, which the environment draws after each choice.

The loop follows sections 5 and 9 of the paper on Wasserstein distributionally robust Bayesian
optimization with continuous context. In each of 100 rounds a method chooses decisions x. Then the
environment draws a context c from its true distribution and returns ``y = f(x, c)`` with Gaussian
noise of standard deviation 0.01. The method sees both. All methods of a seed have the same initial
points and, in each round, the same context and noise. The initial points are 5 random decisions
(the paper states no number), each with a context from the true distribution.

The score is the expected regret of the decisions under the true distribution (eq. 10), summed over
the rounds without initial points (eq. 11). It does not depend on the observed contexts or noise.

Data-driven setting: methods know the t contexts observed so far, and the radii of ambiguity sets
are 0.3 / sqrt(t). General setting (problem `context_shift`): methods know 64 points of a fixed
reference distribution, which is not the true distribution, instead of observed contexts, and the
radius is always 0.1. Radii are in the units of the contexts. The ranges of contexts have length 1;
the camel and the shift have ranges of length 2, less than half of which the true distribution of
the shift uses.

The Gaussian process has a squared-exponential kernel with one lengthscale for each input, on
the unit cube, with standardised outcomes and a fitted noise variance. Hyperparameters are fitted
in every round.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from botorch.models.model import Model
from torch import Tensor

from benchmarks.framework.rbf_surrogate import RefittedRBF
from benchmarks.framework.replicate import OBSERVE, Record, Replicate, stream_seed
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.surrogates import Surrogate
from benchmarks.problems import (
    ContextualAckley,
    ContextualHartmann6,
    ModifiedBranin,
    ThreeHumpCamel,
)
from botorch_calib.test_functions import ContextShift, ContextualProblem, Newsvendor

# Numbers of random streams, which must not change, see `framework.replicate`.
CONTEXTS, INITIAL = 20, 21

NOISE_STD = 0.01
REFERENCE_POINTS = 64


@dataclass(frozen=True)
class ContextualTask:
    """A problem with contexts, to be maximised in expectation.

    Args:
        name: The name, unique within a suite.
        build: Makes the problem, without noise.
        radius: Radius of ambiguity sets; if it shrinks, the radius after one observed context.
        radius_shrinks: Whether the radius is divided by the square root of the number of
            observed contexts.
        reference: Whether methods know a fixed reference distribution instead of observed
            contexts.
        noise_std: Standard deviation of the noise.
        num_rounds: The number of queries after the initial points.
        num_initial: The number of random initial points.
        surrogate: Makes the Gaussian process of the methods.
    """

    name: str
    build: Callable[[], ContextualProblem]
    radius: float = 0.3
    radius_shrinks: bool = True
    reference: bool = False
    noise_std: float = NOISE_STD
    num_rounds: int = 100
    num_initial: int = 5
    surrogate: Surrogate = RefittedRBF(every=1)


@dataclass(frozen=True)
class History:
    """The data that a method knows before a choice.

    Args:
        X: Joint inputs, ``n x d``, decisions first.
        Y: Outcomes, ``n x 1``.
        contexts: Observed contexts or points of the reference distribution, ``m x d_c``.
        radius: Radius of ambiguity sets in this round.
    """

    X: Tensor
    Y: Tensor
    contexts: Tensor
    radius: float


class RobustStrategy(Protocol):
    """A method that runs on one task with one seed."""

    def fit(self, history: History, step: int) -> Model:
        """The model for the choice of round ``step``."""

    def propose(self, model: Model, history: History) -> Tensor:
        """The next decisions, of length ``d_x``, within their bounds."""


class RobustMethod(Protocol):
    """Makes a strategy. Its description is part of a result's configuration."""

    @property
    def name(self) -> str:
        """The name, unique within a suite."""

    def start(self, task: ContextualTask, problem: ContextualProblem) -> RobustStrategy:
        """The strategy of one replicate, which may use only the bounds of the problem."""


def replicate(task: ContextualTask, method: RobustMethod, seed: int) -> Result:
    """Run ``method`` on ``task``; the result is deterministic, except for wall times."""
    return ContextualReplicate(task, method, seed).run()


class ContextualReplicate(Replicate[ContextualTask, RobustMethod, Model]):
    """Each round chooses decisions and then observes their context and outcome."""

    history: History  # known in the present round

    def __init__(self, task: ContextualTask, method: RobustMethod, seed: int) -> None:
        super().__init__(task, method, seed, task.num_rounds)
        self.function = task.build()
        self.strategy = method.start(task, self.function)
        # Drawn in advance, so that contexts do not depend on the method.
        draws = torch.Generator().manual_seed(stream_seed(seed, CONTEXTS))
        self.contexts = self.draw_contexts(task.num_initial + task.num_rounds, draws)
        self.reference = reference_contexts(task, self.function)
        self.X = self.contexts.new_empty(0, self.function.dim)
        self.y: list[float] = []
        self.f: list[float] = []
        for x in initial_decisions(self.function, task.num_initial, seed):
            self._query(x)

    def draw_contexts(self, num: int, draws: torch.Generator) -> Tensor:
        """Contexts from the true distribution, ``num x d_c``."""
        return self.function.sample_contexts(num, draws)

    def prepare(self, step: int) -> None:
        self.history = self._history()

    def fit(self, step: int) -> Model:
        return self.strategy.fit(self.history, step)

    def propose(self, model: Model) -> Tensor:
        return self.strategy.propose(model, self.history)

    def evaluate(self, x: Tensor, model: Model, step: int) -> None:
        self._query(x)

    def _history(self) -> History:
        observed = self.X[:, self.function.num_decisions :]
        radius = self.problem.radius
        if self.problem.radius_shrinks:
            radius /= math.sqrt(len(observed))
        known = observed if self.reference is None else self.reference
        return History(self.X, self.X.new_tensor(self.y).unsqueeze(-1), known, radius)

    def _query(self, x: Tensor) -> None:
        index = len(self.y)
        if x.shape != (self.function.num_decisions,):
            raise ValueError(
                f"The method chose {x!r}, not {self.function.num_decisions} decisions."
            )
        joint = torch.cat([x.detach(), self.contexts[index]])
        rng = np.random.default_rng(stream_seed(self.seed, OBSERVE, index))
        f = self.function(joint, noise=False).item()
        self.X = torch.cat([self.X, joint.unsqueeze(0)])
        self.f.append(f)
        self.y.append(f + self.problem.noise_std * rng.standard_normal())

    def record(self) -> Record:
        """The record of the replicate.

        Its extras have one entry for each round: ``expected`` is the expectation of the decisions'
        value under the true distribution of contexts, ``regret`` is the optimum minus this
        expectation, and ``cumulative_regret`` is the sum of regrets up to this round. No point is
        recommended, since all decisions count.
        """
        chosen = self.X[self.problem.num_initial :, : self.function.num_decisions]
        expected = self.function.evaluate_stochastic(chosen)
        regret = self.function.stochastic_optimal_value - expected
        return Record(
            num_initial=self.problem.num_initial,
            X=self.X.tolist(),
            y=self.y,
            f=self.f,
            extras={
                "expected": expected.tolist(),
                "regret": regret.tolist(),
                "cumulative_regret": regret.cumsum(dim=0).tolist(),
            },
        )


def initial_decisions(problem: ContextualProblem, n: int, seed: int) -> Tensor:
    """Random decisions, ``n x d_x``."""
    lower, upper = problem.decision_bounds
    rng = np.random.default_rng(stream_seed(seed, INITIAL))
    return lower + (upper - lower) * torch.from_numpy(rng.random((n, problem.num_decisions)))


def reference_contexts(task: ContextualTask, problem: ContextualProblem) -> Tensor | None:
    """Points of the reference distribution, ``m x d_c``; ``None`` if the task has none."""
    if not task.reference:
        return None
    if not isinstance(problem, ContextShift):
        raise ValueError(f"{task.name} has no reference distribution.")
    return problem.reference_distribution(REFERENCE_POINTS).points


def tasks() -> tuple[ContextualTask, ...]:
    shift = ContextualTask(
        "context_shift", ContextShift, radius=0.1, radius_shrinks=False, reference=True
    )
    return (
        shift,
        ContextualTask("ackley", ContextualAckley),
        ContextualTask("hartmann6", ContextualHartmann6),
        ContextualTask("branin", ModifiedBranin),
        ContextualTask("camel", ThreeHumpCamel),
        ContextualTask("newsvendor", Newsvendor),
    )
