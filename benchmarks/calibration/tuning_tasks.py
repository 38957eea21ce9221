"""Hyperparameters of an online topic model and of a small network, after the paper on OCBO.

`TopicTask` replaces the paper's Online LDA on the 20 newsgroups. `CnnTask` of `benchmarks.delay`, a
network on handwritten digits, replaces its networks on CIFAR-10 and SVHN. Each task has three
versions, which differ in the documents, or in the network's initial weights and the order of its
data. As in the paper, there are 5 random initial points and 50 evaluations by expected improvement.
The domain of a task is a grid whose values are computed once (see `delay.value_tables`), so that
the optimum is known. The acquisition function is evaluated at all choices that have not been tried.
There is no noise: each value comes from one training run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from botorch.acquisition.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.optim import optimize_acqf_discrete
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.calibration.published_ocbo import Algorithm4Strategy, compared
from benchmarks.calibration.topics import TopicTask
from benchmarks.delay.trained_models import CnnTask
from benchmarks.delay.value_tables import TabulatedTask, table_evaluator
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.sequential import Method, Oracle, Problem, SequentialReplicate
from benchmarks.framework.strategies import AcquisitionStrategy
from benchmarks.framework.surrogates import Refitted

TASKS = (TopicTask, CnnTask)

# Seeds of the tasks.
VERSIONS = range(3)


@dataclass(frozen=True, kw_only=True)
class TabulatedProblem(Problem):
    """A problem whose domain is the choices of a task."""

    task: TabulatedTask


def tabulated_oracle(seed: int, *, task: TabulatedTask) -> Oracle:
    """The objective that ``task`` tabulates, without noise and the same for every seed."""
    table = table_evaluator(seed, task=task)

    def values(X: Tensor) -> Tensor:
        return X.new_tensor([table.truth(x) for x in X]).unsqueeze(-1)

    return Oracle(values, values, table.optimal_value)


def random_choices(n: int, seed: int, *, task: TabulatedTask) -> Tensor:
    """``n x d`` distinct random choices."""
    choices = task.choices()
    with manual_seed(seed):
        return choices[torch.randperm(len(choices))[:n]]


@dataclass
class ChoiceStrategy(AcquisitionStrategy):
    """Maximizes the acquisition function over all choices that have not been tried."""

    tried: Tensor | None = field(default=None, init=False, repr=False)

    def propose(self, model: Model | None, X: Tensor, Y: Tensor) -> Tensor:
        self.tried = X
        return super().propose(model, X, Y)

    def maximise(self, acquisition: AcquisitionFunction) -> Tensor:
        best, _ = optimize_acqf_discrete(
            acquisition, q=1, choices=choices_of(self.problem), X_avoid=self.tried
        )
        return best


@dataclass
class Algorithm4ChoiceStrategy(ChoiceStrategy, Algorithm4Strategy):
    """Chooses by the recalibrated distribution of the observation."""


class TabulatedReplicate(SequentialReplicate):
    """A replicate that checks intervals of the objective at all choices."""

    def space(self) -> Tensor:
        return choices_of(self.problem)


def replicate(problem: Problem, method: Method, seed: int) -> Result:
    """Run ``method`` on ``problem``; the result is deterministic, except for wall times."""
    return TabulatedReplicate(problem, method, seed).run()


def choices_of(problem: Problem) -> Tensor:
    """All choices of a tabulated problem, ``n x d``."""
    if not isinstance(problem, TabulatedProblem):
        raise TypeError(f"{problem.name!r} is not a tabulated problem.")
    return problem.task.choices()


def tabulated(task: TopicTask | CnnTask) -> TabulatedProblem:
    """The problem of a task."""
    lower, upper = task.choices().aminmax(dim=0)
    return TabulatedProblem(
        name=f"{task.name}_{task.seed}",
        build=partial(tabulated_oracle, task=task),
        bounds=tuple(zip(lower.tolist(), upper.tolist(), strict=True)),
        optimal_value=math.nan,
        initial_design=partial(random_choices, task=task),
        num_initial=5,
        num_evaluations=50,
        surrogate=Refitted(every=5, at_first=10),
        task=task,
    )


def problems() -> tuple[TabulatedProblem, ...]:
    """The topic model and the network, in all versions."""
    return tuple(tabulated(task(seed=seed)) for task in TASKS for seed in VERSIONS)


def groups() -> dict[str, tuple[str, ...]]:
    """The names of the problems of each task."""
    return {task().name: tuple(f"{task().name}_{seed}" for seed in VERSIONS) for task in TASKS}


def methods() -> tuple[Method, ...]:
    """The plain process, replayed calibration, and leave-one-out calibration."""
    return compared(ChoiceStrategy, Algorithm4ChoiceStrategy)
