"""Suite `bbob_constrained`: COCO's constrained problems with added noise.

The problems come from ``bbob-constrained`` [Hansen et al. 2021, Optimization Methods and
Software 36], which needs ``coco-experiment``: nine families of functions on [-5, 5]^d, minimised,
with several numbers of constraints. A constraint holds where its value is at most 0. Each problem
has a starting point at which all noise-free constraints hold.

* There are four cases: one and three constraints, in two and five dimensions. In each case the seed
  determines the family, all nine in turn, and the instance, so that intervals over seeds are also
  intervals over functions.
* The objective is the negative of the function, maximised, with mean 0 and standard deviation 1
  over 4096 Sobol points of the box. A constraint is divided by its standard deviation over these
  points and not shifted, so that its limit stays 0.
* In these units, Gaussian noise has the standard deviation 0.3 for each constraint and 0.1 for the
  objective, as in `limits_and_workers`. All constraints have to hold together with a probability of
  90 %.
* The instance is the first instance, counted from ``100 s + 1`` with the last three digits ``s`` of
  the seed, whose starting point is safe in this sense. Many instances with three constraints have
  no safe starting point.
* The data before the 100 rounds are the starting point and 4 d - 1 Sobol points. Gaussian processes
  of the objective and of each constraint are `SingleTaskGP` at its defaults, fitted in every tenth
  round.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from itertools import count
from typing import Any

import torch
from botorch.models import SingleTaskGP
from botorch.test_functions.synthetic import SyntheticTestFunction
from torch import Tensor

from benchmarks.decisions.faults_and_small_sets import NOISE
from benchmarks.decisions.limits_and_workers import (
    METHODS,
    FurtherReplicate,
    FurtherTask,
    JointMethod,
    SeveralOutcomes,
)
from benchmarks.decisions.tasks import (
    LEVEL,
    REFIT_EVERY,
    LimitedOutcome,
    Standardized,
    moments,
)
from benchmarks.framework.landscapes import Noise
from benchmarks.framework.replicate_result import Result, replicate_config
from benchmarks.framework.surrogates import DefaultPriors, Surrogate

# A family has six functions with different numbers of constraints. `PLACES` has the places of the
# functions with one and three constraints.
NUM_FAMILIES, PER_FAMILY, PLACES = 9, 6, {"one": 1, "three": 2}
DIMS = (2, 5)


@cache
def coco_problem(function: int, dim: int, instance: int) -> Any:
    """A problem of ``bbob-constrained``."""
    import cocoex

    selected = f"dimensions: {dim} function_indices: {function}"
    return cocoex.Suite("bbob-constrained", f"instances: {instance}", selected)[0]


class CocoFunction(SyntheticTestFunction):
    """The negative of a problem's objective, or one of its constraints.

    Args:
        function: The number of the function in its suite.
        dim: Number of inputs.
        instance: The number of its instance.
        constraint: The index of the constraint, from 0; ``None`` for the objective.
    """

    _optimal_value = None

    def __init__(self, function: int, dim: int, instance: int, constraint: int | None) -> None:
        self.dim, self.continuous_inds = dim, list(range(dim))
        self.problem, self.constraint = coco_problem(function, dim, instance), constraint
        self._bounds = list(zip(self.problem.lower_bounds, self.problem.upper_bounds, strict=True))
        super().__init__(dtype=torch.double)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        if self.constraint is None:
            return X.new_tensor([-self.problem(x) for x in X.numpy()])
        return X.new_tensor([self.problem.constraint(x)[self.constraint] for x in X.numpy()])


# Each replicate uses a function some hundred times.
coco_function = lru_cache(maxsize=8)(CocoFunction)


@dataclass(frozen=True)
class Scaled(Standardized):
    """A function that is divided by its standard deviation but not shifted, so that 0 stays 0."""

    def __call__(self, X: Tensor) -> Tensor:
        return self.raw(X) / moments(self)[1]


@dataclass(frozen=True)
class NonPositive(LimitedOutcome):
    """An outcome with the limit 0."""

    @property
    def limit(self) -> float:
        return 0.0


@dataclass(frozen=True)
class InstanceTask(FurtherTask):
    """A `FurtherTask` with a point of the unit cube that is known to be safe."""

    start: tuple[float, ...] = ()


@dataclass(frozen=True)
class CocoTask:
    """Problems of ``bbob-constrained`` with the same number of constraints, one for each seed.

    Args:
        name: The name, unique within a suite.
        place: The place of the function within its family, from 1.
        dim: Number of inputs.
        num_initial: Number of initial points, including the starting point.
        noise: Noise of each constraint, in units of its standard deviation over the box.
        level: The required probability that all constraints hold.
        surrogate: Makes the Gaussian processes of the objective and of each constraint.
        instances_per_seed: The difference between the first instances of consecutive seeds.
    """

    name: str
    place: int
    dim: int
    num_initial: int
    noise: Noise = NOISE
    level: float = LEVEL
    surrogate: Surrogate = DefaultPriors(every=REFIT_EVERY)
    instances_per_seed: int = 100

    def instance(self, family: int, number: int) -> InstanceTask:
        """An instance of the function of a family; families are counted from 0."""
        coordinates = PER_FAMILY * family + self.place, self.dim, number
        problem, make = coco_problem(*coordinates), partial(coco_function, *coordinates)
        constraints = [
            NonPositive(Scaled(partial(make, i), self.dim), self.noise, level=self.level)
            for i in range(problem.number_of_constraints)
        ]
        low, high = problem.lower_bounds, problem.upper_bounds
        return InstanceTask(
            name=self.name,
            objective=Standardized(partial(make, None), self.dim),
            outcome=SeveralOutcomes(tuple(constraints), self.level),
            surrogate=self.surrogate,
            num_initial=self.num_initial,
            start=tuple(((problem.initial_solution - low) / (high - low)).tolist()),
        )

    def drawn(self, seed: int) -> InstanceTask:
        """The first instance of a seed whose starting point is safe."""
        return _drawn(self, seed)


@cache
def _drawn(task: CocoTask, seed: int) -> InstanceTask:
    # Two copies of a function are not equal, so this cache also keeps the caches of its moments.
    numbers = count(task.instances_per_seed * (seed % 1000) + 1)
    instances = (task.instance(seed % NUM_FAMILIES, number) for number in numbers)
    return next(found for found in instances if found.outcome.safe(_start(found), time=0.0))


def _start(task: InstanceTask) -> Tensor:
    """The starting point ``1 x d``."""
    return torch.tensor([task.start], dtype=torch.double)


def start_value(task: CocoTask, seed: int) -> float:
    """The noise-free objective at the starting point of a seed."""
    drawn = task.drawn(seed)
    return float(drawn.objective(_start(drawn)))


class CocoReplicate(FurtherReplicate):
    """A replicate with a safe starting point, and a fitted process of the objective."""

    problem: InstanceTask

    def __init__(self, task: InstanceTask, method: JointMethod, seed: int) -> None:
        super().__init__(task, method, seed)
        self.objective_gp: SingleTaskGP | None = None
        self.X = torch.cat([_start(task), self.X[1:]])
        self.objectives, self.outcomes = self._observe(self.X, step=0, time=0.0)

    def _objective_gp(self, step: int) -> SingleTaskGP:
        self.objective_gp = self.problem.surrogate(
            self.X, self.objectives, self.bounds, step, self.objective_gp
        )
        return self.objective_gp


def replicate(task: CocoTask, method: JointMethod, seed: int) -> Result:
    """Run ``method`` on ``task``; the result is deterministic, except for wall times."""
    result = CocoReplicate(task.drawn(seed), method, seed).run()
    return replace(result, config=replicate_config(task, method))


CASES = {f"{name}_{dim}d": (place, dim) for name, place in PLACES.items() for dim in DIMS}


def tasks() -> tuple[CocoTask, ...]:
    return tuple(
        CocoTask(f"bbob_{case}", place, dim, num_initial=4 * dim)
        for case, (place, dim) in CASES.items()
    )


def methods() -> tuple[JointMethod, ...]:
    """The methods of `limits_and_workers` without ``misses``, ``wide_2`` and ``wide_3``."""
    names = ("budget", "plain", "wide", "oracle")
    return tuple(method for method in METHODS if method.name in names)
