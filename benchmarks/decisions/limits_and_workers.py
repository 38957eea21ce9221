"""Suite `decisions_further`: more inputs, two limits, four workers, few and many initial points.

Tasks are as in `faults_and_small_sets`: the same functions in other dimensions, `SingleTaskGP` at
its defaults, fitted in every tenth of 100 rounds, Gaussian noise with standard deviation 0.3 on
each outcome, and half of the box safe.

Functions by the name of the outcome: ``levy`` with Dixon-Price as the objective, and
``dixon_price`` with Levy as the objective, both on [-2, 2]^d.

Cases. Unless stated otherwise, there are five inputs, one limit and 4 d initial points, and each
outcome is known before the next choice:

* ``d5`` and ``d10``: five and ten inputs.
* ``two_limits``: Styblinski and Tang's function is a second outcome with a limit. At a safe point,
  both limits hold together with a probability of at least 90 %. Each limit alone holds with a
  probability of at least 95 % in 60 % of the box.
* ``workers``: four workers. Durations of evaluations are exponential, so outcomes arrive late and
  out of order. A free worker gets the next point at once.
* ``both``: two limits and four workers.
* ``start_5``, ``start_20`` and ``start_100``: a quarter of the box is safe, and there are 5, 20 or
  100 initial points.

Methods are the methods of `methods` for several outcomes:

* ``budget``: the rule at its defaults; `with_model` continues it in each round.
* ``misses``: the previous rule, see `rule_of_misses`.
* ``plain`` and ``wide``: Gaussian quantiles times 1 and 1.5, without a budget. ``wide_2`` and
  ``wide_3`` (times 2 and 3) serve to compare rewards at matched violations.
* ``oracle``: certifies by the true probability that any limit is violated.

For all methods, the objective's model hallucinates values at points under evaluation. Models of
outcomes know only the outcomes that have arrived.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from botorch.models import SingleTaskGP
from botorch.test_functions.base import BaseTestProblem
from botorch.test_functions.synthetic import DixonPrice, Levy, StyblinskiTang
from torch import Tensor

from benchmarks.decisions.faults_and_small_sets import NOISE
from benchmarks.decisions.methods import Budgeted
from benchmarks.decisions.oracle import Oracle, TrueConstraint
from benchmarks.decisions.replicate import DESIGN, DecisionMethod, DecisionReplicate, Round
from benchmarks.decisions.rule_of_misses import RuleOfMisses
from benchmarks.decisions.tasks import (
    LEVEL,
    REFIT_EVERY,
    DecisionTask,
    LimitedOutcome,
    Standardized,
    cube,
)
from benchmarks.framework.landscapes import ReferenceGP
from benchmarks.framework.replicate import Replicate, stream_seed
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.sequential import box
from benchmarks.framework.surrogates import DefaultPriors, Surrogate, with_data
from botorch_calib import CensoredDelayModel, ChanceConstraint
from botorch_calib.decisions.widening import EQUAL

# Number of a random stream, which must not change, see `framework.replicate`.
DURATIONS = 32


@dataclass(frozen=True)
class SeveralOutcomes:
    """Outcomes with independent noise that have to be within their limits together.

    Args:
        parts: The outcomes, each with its limit.
        level: The required probability that all outcomes are within their limits.
    """

    parts: tuple[LimitedOutcome, ...]
    level: float = LEVEL

    @property
    def limit(self) -> float:
        return 1.0 - self.level

    def observe(self, U: Tensor, time: float) -> Tensor:
        return torch.cat([part.observe(U, time) for part in self.parts], dim=-1)

    def violation_probability(self, U: Tensor, time: float) -> Tensor:
        """True probability, ``n x 1``, that any outcome exceeds its limit."""
        each = [part.violation_probability(U, time) for part in self.parts]
        return 1.0 - (1.0 - torch.cat(each, dim=-1)).prod(dim=-1, keepdim=True)

    def room(self, U: Tensor, time: float) -> Tensor:
        """Allowed minus true probability of a violation, ``n x 1``; negative if unsafe."""
        return self.limit - self.violation_probability(U, time)

    def safe(self, U: Tensor, time: float) -> Tensor:
        """Whether points are truly safe, ``n``."""
        return (self.room(U, time) >= 0.0).squeeze(-1)


@dataclass(frozen=True)
class FurtherTask(DecisionTask):
    """A `DecisionTask` with several limited outcomes and several workers."""

    outcome: Any  # `SeveralOutcomes`, which has no single surface
    workers: int = 1


# ------------------------------------------------------------ methods


@dataclass(frozen=True)
class JointMethod(DecisionMethod):
    """A method that states the constraint on all outcomes of each round.

    Args:
        name: The name, unique within a suite.
    """

    def constraint(
        self, gps: Sequence[SingleTaskGP], outcome: SeveralOutcomes, last: ChanceConstraint | None
    ) -> ChanceConstraint:
        """The constraint of a round; ``last`` is the constraint of the previous round, if any."""
        raise NotImplementedError

    def decide(self, constraint: ChanceConstraint, x: Tensor) -> None:
        """Record that ``x`` (``1 x d``) is sent to a worker, if the method needs this."""

    def observe(self, constraint: ChanceConstraint, x: Tensor, y: Tensor) -> None:
        """Record the outcomes ``y`` (``1 x m``) at ``x``."""

    def rooms(self, margins: list[float], num: int) -> list[float]:
        """The distances of the stated quantiles of ``num`` outcomes below their limits."""
        return margins


@dataclass(frozen=True)
class JointBudget(JointMethod):
    """A chance constraint on all outcomes at its defaults, continued in each round.

    Args:
        name: The name, unique within a suite.
        confidence: The confidence with which the recommended point is safe.
        constants: Constants of the rule, so that a change of them changes the configuration.
    """

    confidence: float = 0.95
    constants: tuple[float, ...] = (*Budgeted.constants, EQUAL)

    def constraint(
        self, gps: Sequence[SingleTaskGP], outcome: SeveralOutcomes, last: ChanceConstraint | None
    ) -> ChanceConstraint:
        models = named(gps)
        return self.started(models, outcome) if last is None else last.with_model(models)

    def started(
        self, models: dict[str, SingleTaskGP], outcome: SeveralOutcomes
    ) -> ChanceConstraint:
        """The constraint of the first round."""
        return on_all(models, outcome)

    def decide(self, constraint: ChanceConstraint, x: Tensor) -> None:
        constraint.decide(x)

    def observe(self, constraint: ChanceConstraint, x: Tensor, y: Tensor) -> None:
        # The next round has models of all data, so the present models need not be conditioned.
        constraint.observe(x, y, condition=False)


@dataclass(frozen=True)
class JointMisses(JointBudget):
    """As `JointBudget`, with the previous rule."""

    constants: tuple[float, ...] = (EQUAL,)

    def started(
        self, models: dict[str, SingleTaskGP], outcome: SeveralOutcomes
    ) -> ChanceConstraint:
        return on_all(models, outcome, RuleOfMisses)


@dataclass(frozen=True)
class JointWidth(JointMethod):
    """Gaussian quantiles times a fixed factor, without a budget.

    Args:
        name: The name, unique within a suite.
        factor: The factor.
        equal_part: A constant of the rule by which limits share the allowed probability, so that
            a change of it changes the configuration.
    """

    factor: float = 1.0
    equal_part: float = EQUAL

    def constraint(
        self, gps: Sequence[SingleTaskGP], outcome: SeveralOutcomes, last: ChanceConstraint | None
    ) -> ChanceConstraint:
        return on_all(named(gps), outcome, width=self.factor, budget=math.inf)


@dataclass(frozen=True)
class JointOracle(JointMethod):
    """Certifies by the true probability that any limit is violated."""

    def surrogate(self, given: Surrogate) -> Surrogate:
        return Oracle(self.name).surrogate(given)

    def constraint(
        self, gps: Sequence[SingleTaskGP], outcome: SeveralOutcomes, last: ChanceConstraint | None
    ) -> ChanceConstraint:
        return TrueConstraint(gps[0], outcome, time=0.0)

    def rooms(self, margins: list[float], num: int) -> list[float]:
        return [0.0] * num


def named(gps: Sequence[SingleTaskGP]) -> dict[str, SingleTaskGP]:
    """The models of the outcomes, named by their indices."""
    return {str(i): gp for i, gp in enumerate(gps)}


def on_all(
    models: dict[str, SingleTaskGP],
    outcome: SeveralOutcomes,
    kind: type[ChanceConstraint] = ChanceConstraint,
    **settings: Any,
) -> ChanceConstraint:
    """A new constraint on all outcomes."""
    limits = dict(zip(models, [(None, part.limit) for part in outcome.parts], strict=True))
    return kind(models, level=outcome.level, limits=limits, rows=(), **settings)


METHODS = (
    JointBudget("budget"),
    JointMisses("misses"),
    JointWidth("plain"),
    JointWidth("wide", 1.5),
    JointWidth("wide_2", 2.0),
    JointWidth("wide_3", 3.0),
    JointOracle("oracle"),
)


def factors() -> dict[str, float]:
    """The factors of the plain quantiles by the name of the method."""
    return {method.name: method.factor for method in METHODS if isinstance(method, JointWidth)}


# ------------------------------------------------------------ replicates


class FurtherReplicate(DecisionReplicate):
    """Free workers get points at once, and outcomes arrive when their evaluations end."""

    method: JointMethod

    def __init__(self, task: FurtherTask, method: JointMethod, seed: int) -> None:
        Replicate.__init__(self, task, method, seed, task.num_rounds)  # several outcomes
        self.bounds = box(task.objective.bounds)
        self.reference = ReferenceGP(task.noisy_objective())
        self.surrogate = method.surrogate(task.surrogate)
        self.gps: list[SingleTaskGP | None] = [None] * len(task.outcome.parts)
        self.constraint: ChanceConstraint | None = None
        self.X = cube(task.dim, task.num_initial, seed=stream_seed(seed, DESIGN))
        self.objectives, self.outcomes = self._observe(self.X, step=0, time=0.0)
        self.rounds: dict[str, list[float | None]] = {}
        # The time, and the evaluations in progress as a heap.
        self.now, self.out = 0.0, list[Evaluation]()

    def prepare(self, step: int) -> None:
        while len(self.out) >= self.problem.workers:
            self._arrive()

    def fit(self, step: int) -> Round:
        known = []
        for i, last in enumerate(self.gps):
            gp = self.surrogate(self.X, self.outcomes[:, [i]], self.bounds, step, last)
            self.gps[i] = gp
            known.append(gp)
        objective: Any = self._objective_gp(step).eval()
        if self.out:
            pending = torch.cat([evaluation.x for evaluation in self.out])
            objective = CensoredDelayModel(objective, pending, imputation="hallucinate")
        self.constraint = self.method.constraint(known, self.problem.outcome, self.constraint)
        return Round(objective, self.constraint)

    def evaluate(self, x: Tensor, model: Round, step: int) -> None:
        with torch.no_grad():
            margins = [each.item() for each in model.constraint.margins(x.unsqueeze(-2))]
        self.method.decide(model.constraint, x)
        objective, outcomes = self._observe(x, step + 1, time=0.0)
        parts = self.problem.outcome.parts
        beyond = [y - part.limit for y, part in zip(outcomes[0].tolist(), parts, strict=True)]
        rooms = self.method.rooms(margins, len(parts))
        self._note(
            certified=float(min(margins) >= 0.0),
            # The largest excess of an outcome over its quantile.
            quantile=0.0,
            outcome=max(b + room for b, room in zip(beyond, rooms, strict=True)),
            violated=float(max(beyond) > 0.0),
            probability=self.problem.outcome.violation_probability(x, time=0.0).item(),
        )
        duration = np.random.default_rng(stream_seed(self.seed, DURATIONS, step)).exponential()
        heapq.heappush(self.out, Evaluation(self.now + duration, step, x, objective, outcomes))

    def _objective_gp(self, step: int) -> SingleTaskGP:
        """The objective's process, given all data."""
        return with_data(self.reference(), self.X, self.objectives)

    def _arrive(self) -> None:
        """Add the outcomes of the evaluation that ends next."""
        ended = heapq.heappop(self.out)
        self.now = ended.end
        assert self.constraint is not None  # there has been a round
        self.method.observe(self.constraint, ended.x, ended.outcomes)
        self.X = torch.cat([self.X, ended.x])
        self.objectives = torch.cat([self.objectives, ended.objective])
        self.outcomes = torch.cat([self.outcomes, ended.outcomes])

    def _recommendation(self) -> dict[str, list[float | None]]:
        while self.out:
            self._arrive()
        return super()._recommendation()

    def _decided(self) -> int:
        return super()._decided() + len(self.out)


class Evaluation(NamedTuple):
    """The evaluation of a point ``1 x d``: its end and its values, sorted by its end."""

    end: float
    step: int
    x: Tensor
    objective: Tensor
    outcomes: Tensor


def replicate(task: FurtherTask, method: JointMethod, seed: int) -> Result:
    """Run ``method`` on ``task``; the result is deterministic, except for wall times."""
    return FurtherReplicate(task, method, seed).run()


# ------------------------------------------------------------ tasks


@dataclass(frozen=True)
class FurtherCase:
    """The settings of a case.

    Args:
        dim: Number of inputs.
        num_initial: Number of initial points.
        safe_share: Share of the box that is safe.
        has_second: Whether Styblinski and Tang's function is a second outcome with a limit.
        workers: Number of workers.
    """

    dim: int = 5
    num_initial: int = 20
    safe_share: float = 0.5
    has_second: bool = False
    workers: int = 1

    def task(self, name: str, limited: Standardized, objective: Standardized) -> FurtherTask:
        """A pair of functions in this case."""
        if self.has_second:
            second = Standardized(partial(StyblinskiTang, dim=self.dim), self.dim)
            level, share = LEVEL_OF_EACH, SHARE_OF_EACH
            parts = tuple(
                LimitedOutcome(surface, NOISE, safe_share=share, level=level)
                for surface in (limited, second)
            )
        else:
            parts = (LimitedOutcome(limited, NOISE, safe_share=self.safe_share),)
        return FurtherTask(
            name=name,
            objective=objective,
            outcome=SeveralOutcomes(parts),
            surrogate=DefaultPriors(every=REFIT_EVERY),
            num_initial=self.num_initial,
            workers=self.workers,
        )


# Each of two outcomes is safe at this level in this share of the box; together they are safe in
# about half of the box.
LEVEL_OF_EACH, SHARE_OF_EACH = 0.95, 0.6

CASES: dict[str, FurtherCase] = {
    "d5": FurtherCase(),
    "d10": FurtherCase(dim=10, num_initial=40),
    "two_limits": FurtherCase(has_second=True),
    "workers": FurtherCase(workers=4),
    "both": FurtherCase(has_second=True, workers=4),
    "start_5": FurtherCase(num_initial=5, safe_share=0.25),
    "start_20": FurtherCase(num_initial=20, safe_share=0.25),
    "start_100": FurtherCase(num_initial=100, safe_share=0.25),
}


def tasks() -> tuple[FurtherTask, ...]:
    found = []
    for case, kind in CASES.items():
        levy, dixon_price = (on_square(function, kind.dim) for function in (Levy, DixonPrice))
        found.append(kind.task(f"levy_{case}", levy, dixon_price))
        found.append(kind.task(f"dixon_price_{case}", dixon_price, levy))
    return tuple(found)


def on_square(function: Callable[..., BaseTestProblem], dim: int) -> Standardized:
    """A function on [-2, 2]^d."""
    return Standardized(partial(function, dim=dim, bounds=[(-2.0, 2.0)] * dim), dim)
