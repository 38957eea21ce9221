"""Suite `delay_workers`: strategies for the next query while 10, 20, 50 or 100 workers are busy.

Each value arrives after as many further queries as there are workers, so that all workers are
always busy. The methods are strategies of `DelayAwareProposer` with its default model and search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction, qLogExpectedImprovement
from botorch.models.model import Model
from botorch.sampling import SobolQMCNormalSampler
from botorch.test_functions import Branin, Hartmann, Levy, SyntheticTestFunction
from torch import Tensor

from benchmarks.delay.objectives import DelayedObjective
from benchmarks.delay.replicate import DelayedTask
from botorch_calib.asynchronous import DelayAwareProposer, DelayStrategy, SearchSettings
from botorch_calib.asynchronous.delay_strategy import STRATEGIES
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.test_functions.delayed import FixedDelay

WORKERS = (10, 20, 50, 100)

# The first value arrives after as many queries as there are workers.
ROUNDS, ROUNDS_PER_WORKER = 60, 2

NUM_SAMPLES = 64

# Objectives with their lower bounds, which replace censored values.
OBJECTIVES: dict[str, tuple[Callable[[], SyntheticTestFunction], float]] = {
    "branin": (partial(Branin, negate=True), -310.0),
    "levy4": (partial(Levy, dim=4, negate=True), -270.0),
    "hartmann6": (partial(Hartmann, dim=6, negate=True), 0.0),
}


@dataclass(frozen=True)
class FunctionEvaluator:
    """A test function without noise, to be maximised, on the unit cube."""

    function: SyntheticTestFunction
    choices: Tensor | None = None

    @property
    def optimal_value(self) -> float:
        return float(self.function.optimal_value)

    def truth(self, x: Tensor) -> float:
        lower, upper = self.function.get_buffer("bounds").to(x)
        return float(self.function((lower + x * (upper - lower)).unsqueeze(0)))

    def observe(self, x: Tensor, rng: np.random.Generator) -> float:
        return self.truth(x)


def function_evaluator(seed: int, *, name: str) -> FunctionEvaluator:
    """One of the objectives, the same for every seed."""
    return FunctionEvaluator(OBJECTIVES[name][0]())


def tasks() -> tuple[DelayedTask, ...]:
    made = []
    for name, (make, least) in OBJECTIVES.items():
        dim = make().dim
        objective = DelayedObjective(
            name, partial(function_evaluator, name=name), ((0.0, 1.0),) * dim, least
        )
        for workers in WORKERS:
            made.append(
                DelayedTask(
                    f"{name}_{workers}",
                    objective,
                    FixedDelay(float(workers)),
                    max_wait=workers,
                    num_rounds=ROUNDS + ROUNDS_PER_WORKER * workers,
                    num_initial=2 * dim + 1,
                )
            )
    return tuple(made)


def expected_improvement(model: Model, ledger: FeedbackLedger) -> AcquisitionFunction:
    """BoTorch's expected improvement, with the queries under evaluation as ``X_pending``."""
    _, Y = ledger.to_observations()
    return qLogExpectedImprovement(
        model,
        best_f=Y.max(),
        sampler=SobolQMCNormalSampler(torch.Size([NUM_SAMPLES]), seed=len(ledger)),
        X_pending=ledger.pending(),
    )


@dataclass(frozen=True)
class Proposals:
    """A strategy of `DelayAwareProposer`.

    Args:
        name: The name, unique within a suite.
        strategy: The strategy.
        num_restarts: Number of starts of the search.
        raw_samples: Number of points from which the starts are chosen.
    """

    name: str
    strategy: DelayStrategy
    num_restarts: int = 4
    raw_samples: int = 128

    def start(self, task: DelayedTask, bounds: Tensor) -> ProposalsStrategy:
        """The strategy of one replicate on inputs in ``bounds``, ``2 x d``."""
        return ProposalsStrategy(self, bounds)


@dataclass
class ProposalsStrategy:
    """The strategy of `Proposals`."""

    settings: Proposals
    bounds: Tensor
    propose_next: DelayAwareProposer | None = field(default=None, init=False, repr=False)

    def fit(self, ledger: FeedbackLedger, step: int) -> None:
        """Do nothing, since the proposer fits its model."""

    def propose(self, model: None, ledger: FeedbackLedger, choices: Tensor | None) -> Tensor:
        if self.propose_next is None:
            # The global generator is seeded for this replicate's first round.
            seed = int(torch.randint(2**31, (1,)))
            search = SearchSettings(self.settings.num_restarts, self.settings.raw_samples, seed)
            self.propose_next = DelayAwareProposer(
                self.bounds, self.settings.strategy, num_initial=0, search=search
            )
        return self.propose_next(ledger)


@dataclass(frozen=True)
class RandomQueries:
    """Uniform random points."""

    name: str = "random"

    def start(self, task: DelayedTask, bounds: Tensor) -> RandomStrategy:
        """The strategy of one replicate on inputs in ``bounds``, ``2 x d``."""
        return RandomStrategy(bounds)


@dataclass
class RandomStrategy:
    """The strategy of `RandomQueries`."""

    bounds: Tensor

    def fit(self, ledger: FeedbackLedger, step: int) -> None:
        """Do nothing."""

    def propose(self, model: None, ledger: FeedbackLedger, choices: Tensor | None) -> Tensor:
        unit = torch.rand(self.bounds.shape[-1], dtype=torch.double)
        return self.bounds[0] + unit * (self.bounds[1] - self.bounds[0])


def compared() -> tuple[Proposals | RandomQueries, ...]:
    return (
        Proposals("default", STRATEGIES["hallucinate"]),
        Proposals("ucb_sdf", DelayStrategy(max_censored=None)),
        Proposals("ucb_hallucinate", DelayStrategy(imputation="hallucinate", window=None)),
        Proposals("ts_hallucinate", DelayStrategy("ts", "hallucinate", window=None)),
        Proposals("qlogei_pending", DelayStrategy(expected_improvement, "none", window=None)),
        RandomQueries(),
    )
