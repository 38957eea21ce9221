"""Tasks with delays that can be solved by hand, and methods that follow a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.delay.objectives import DelayedObjective
from benchmarks.delay.replicate import DelayedTask
from benchmarks.delay.value_tables import TableEvaluator
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.test_functions.delayed import DelayDistribution

GRID = torch.linspace(0.0, 1.0, 11, dtype=torch.double).unsqueeze(-1)


def hat(X: Tensor) -> Tensor:
    """A function with the maximum 1 at 0.3."""
    return 1.0 - (X[..., 0] - 0.3).abs()


def discrete(seed: int, noise_std: float = 0.0) -> TableEvaluator:
    return TableEvaluator(GRID, hat(GRID), noise_std)


def objective(build: Callable[[int], Any] = discrete) -> DelayedObjective:
    return DelayedObjective("hat", build, ((0.0, 1.0),), 0.0)


def toy(
    delay: DelayDistribution, build: Callable[[int], Any] = discrete, **options: Any
) -> DelayedTask:
    settings = {"max_wait": 4, "num_rounds": 6, "num_initial": 2, **options}
    return DelayedTask("toy", objective(build), delay, **settings)


@dataclass(frozen=True)
class Scripted:
    """Makes given queries, by index among the choices, and records its data."""

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
