"""Contexts that the environment draws after each choice: the loop of suite `robust`.

The protocol follows sections 5 and 9 of the paper on Wasserstein distributionally robust Bayesian
optimization with continuous context, fixed before the first run. In each of 100 rounds a method
chooses decisions x, then the environment draws a context c from its true distribution and returns
``y = f(x, c)`` with Gaussian noise of standard deviation 0.01; both are shown to the method. All
methods of one seed share the initial points (5 random decisions, each with a context drawn from
the true distribution; the paper gives no number), and, round by round, contexts and noise.

What counts is the regret of the decisions in expectation over the true distribution (eq. 10), added
up over the rounds (eq. 11), initial points apart: neither the contexts met nor the noise enter it.

Data-driven setting: methods know the contexts observed so far; the radii of ambiguity sets are
0.3 / sqrt(t) with t the number of these. General setting (problem `context_shift`): in place of
observed contexts, methods are given 64 points of a fixed reference distribution, which is not the
true one, and the radius is 0.1 throughout. Radii are in the units of the contexts. Their ranges
have length 1, but for the camel (2) and the shift (2, of which the true distribution takes up less
than half).

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

# Numbers of random streams, see `framework.replicate`. Never renumber.
CONTEXTS, INITIAL = 20, 21

NOISE_STD = 0.01
REFERENCE_POINTS = 64


@dataclass(frozen=True)
class ContextualTask:
    """A problem with contexts, to be maximised in expectation.

    Args:
        name: Names the result folder.
        build: Makes the problem, without noise.
        radius: Of ambiguity sets: fixed, or with one observed context.
        radius_shrinks: Whether the radius is divided by the square root of the number of contexts
            observed.
        reference: Whether methods are given a fixed reference distribution in place of observed
            contexts.
        noise_std: Standard deviation of the noise.
        num_rounds: The number of queries after the initial ones.
        num_initial: The number of random initial points.
        surrogate: Makes the Gaussian process that methods are given.
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
    """What a method knows before a choice.

    Args:
        X: Joint inputs, ``n x d``, decisions first.
        Y: Outcomes, ``n x 1``.
        contexts: Samples of the distribution that the method knows of, ``m x d_c``: those
            observed, or points of the reference distribution.
        radius: Of ambiguity sets, in this round.
    """

    X: Tensor
    Y: Tensor
    contexts: Tensor
    radius: float


class RobustStrategy(Protocol):
    """One method at work on one task with one seed."""

    def fit(self, history: History, step: int) -> Model:
        """The model for the choice of round ``step``."""

    def propose(self, model: Model, history: History) -> Tensor:
        """The next decisions, of length ``d_x``, within their bounds."""


class RobustMethod(Protocol):
    """Makes a strategy. Its description is part of a result's configuration."""

    @property
    def name(self) -> str:
        """Names it within a suite, and its folder."""

    def start(self, task: ContextualTask, problem: ContextualProblem) -> RobustStrategy:
        """The strategy of one replicate; of the problem it may use nothing but the bounds."""


def replicate(task: ContextualTask, method: RobustMethod, seed: int) -> Result:
    """Run ``method`` on ``task``: deterministic in ``seed``, wall times aside."""
    return ContextualReplicate(task, method, seed).run()


class ContextualReplicate(Replicate[ContextualTask, RobustMethod, Model]):
    """Rounds in which a method chooses decisions and then sees their context and outcome."""

    history: History  # what the method knows in the present round

    def __init__(self, task: ContextualTask, method: RobustMethod, seed: int) -> None:
        super().__init__(task, method, seed, task.num_rounds)
        self.function = task.build()
        self.strategy = method.start(task, self.function)
        # Drawn in advance, so that they do not depend on what a method does.
        draws = torch.Generator().manual_seed(stream_seed(seed, CONTEXTS))
        self.contexts = self.draw_contexts(task.num_initial + task.num_rounds, draws)
        self.reference = reference_contexts(task, self.function)
        self.X = self.contexts.new_empty(0, self.function.dim)
        self.y: list[float] = []
        self.f: list[float] = []
        for x in initial_decisions(self.function, task.num_initial, seed):
            self._query(x)

    def draw_contexts(self, num: int, draws: torch.Generator) -> Tensor:
        """Contexts from their true distribution, ``num x d_c``."""
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
        """The run.

        Its extras have one entry for each round: ``expected`` is the expectation of the decisions'
        value under the true distribution of contexts, ``regret`` what it falls short of the
        optimum, and ``cumulative_regret`` the sum of regrets up to and with the round. There is no
        inference: decisions count as they are made.
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
