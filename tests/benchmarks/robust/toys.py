"""A short task with contexts, and methods that follow a script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.problems import ThreeHumpCamel
from benchmarks.robust.methods import RobustBO, compared
from benchmarks.robust.replicate import ContextualTask, History

CAMEL = ContextualTask("camel", ThreeHumpCamel, num_rounds=4, num_initial=2)


@dataclass(frozen=True)
class Scripted:
    """Makes given decisions in turn, and records its data."""

    name: str = "scripted"
    path: tuple[float, ...] = (0.0,)

    def start(self, task: ContextualTask, problem: Any) -> ScriptedStrategy:
        strategy = ScriptedStrategy(self.path, problem.num_decisions)
        STARTED.append(strategy)
        return strategy


@dataclass
class ScriptedStrategy:
    path: tuple[float, ...]
    num_decisions: int
    seen: list[History] = field(default_factory=list)

    def fit(self, history: History, step: int) -> Any:
        assert step == len(self.seen)
        self.seen.append(history)

    def propose(self, model: Any, history: History) -> Tensor:
        value = self.path[(len(self.seen) - 1) % len(self.path)]
        return torch.full((self.num_decisions,), value, dtype=torch.double)


STARTED: list[ScriptedStrategy] = []


def method_named(name: str) -> RobustBO:
    (found,) = (method for method in compared() if method.name == name)
    return found
