"""Tasks under delays that are solved by hand, and methods that follow a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.delay.objectives import DelayedObjective
from benchmarks.delay.replicate import DelayedTask
from benchmarks.delay.value_tables import ContextualTableEvaluator, TableEvaluator
from benchmarks.framework.results import Result
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.test_functions.delayed import DelayDistribution, FixedDelay

GRID = torch.linspace(0.0, 1.0, 11, dtype=torch.double).unsqueeze(-1)


def hat(X: Tensor) -> Tensor:
    """1 at 0.3, falling off on both sides."""
    return 1.0 - (X[..., 0] - 0.3).abs()


def discrete(seed: int, noise_std: float = 0.0) -> TableEvaluator:
    return TableEvaluator(GRID, hat(GRID), noise_std)


@dataclass(frozen=True)
class ContinuousHat:
    choices: Tensor | None = None
    optimal_value: float = 1.0

    def truth(self, x: Tensor) -> float:
        return hat(x).item()

    def observe(self, x: Tensor, rng: np.random.Generator) -> float:
        return self.truth(x) + 0.01 * rng.standard_normal()


def continuous(seed: int) -> ContinuousHat:
    return ContinuousHat()


def contextual(seed: int) -> ContextualTableEvaluator:
    """Three points in each of two contexts, where the best values are 0.2 and 0.9."""
    choices = torch.tensor(
        [[x, c] for c in (0.0, 1.0) for x in (0.0, 0.5, 1.0)], dtype=torch.double
    )
    values = torch.tensor([0.0, 0.1, 0.2, 0.9, 0.5, 0.0], dtype=torch.double)
    return ContextualTableEvaluator(choices, values)


def objective(build: Callable[[int], Any] = discrete, **options: int) -> DelayedObjective:
    return DelayedObjective("hat", build, ((0.0, 1.0),), 0.0, **options)


def toy(
    delay: DelayDistribution, build: Callable[[int], Any] = discrete, **options: Any
) -> DelayedTask:
    settings = {"max_wait": 4, "num_rounds": 6, "num_initial": 2, **options}
    return DelayedTask("toy", objective(build), delay, **settings)


CONTEXTUAL = DelayedTask(
    "contexts",
    objective(contextual, num_contexts=2, rounds_per_context=3),
    FixedDelay(2.0),
    max_wait=4,
    num_rounds=6,
    num_initial=2,
)


@dataclass(frozen=True)
class Scripted:
    """Makes given queries, by number among the choices, and notes what it sees."""

    name: str = "scripted"
    path: tuple[int, ...] = ()

    def start(self, task: DelayedTask, bounds: Tensor) -> ScriptedStrategy:
        strategy = ScriptedStrategy(self.path)
        STARTED.append(strategy)
        return strategy


@dataclass
class ScriptedStrategy:
    path: tuple[int, ...]
    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    pending: list[Tensor] = field(default_factory=list)
    choices: list[Tensor] = field(default_factory=list)

    def fit(self, ledger: FeedbackLedger, step: int) -> Any:
        self.seen.append(ledger.to_observations())
        self.pending.append(ledger.pending())

    def propose(self, model: Any, ledger: FeedbackLedger, choices: Tensor | None) -> Tensor:
        assert choices is not None
        self.choices.append(choices)
        step = len(self.seen) - 1
        return choices[self.path[step] if self.path else step % len(choices)]


STARTED: list[ScriptedStrategy] = []


def without_times(result: Result) -> Result:
    return replace(result, fit_seconds=[], acquisition_seconds=[])
