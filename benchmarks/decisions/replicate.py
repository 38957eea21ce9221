"""The loop of the suites on decisions: a method certifies points in each round, and one is chosen.

A method states a chance constraint in each round. The choice follows the same rule for all methods:
of the certified points of a two-step search, the one with the largest upper confidence bound on the
objective; if no point is certified, the most informative point. Methods therefore differ only in
the points that they certify. All methods of a seed have the same initial points and noise, and in
each round the same candidates and offsets around the best candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from botorch.acquisition import AcquisitionFunction, PosteriorMean, UpperConfidenceBound
from botorch.models import SingleTaskGP
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.decisions.tasks import DecisionTask, cube
from benchmarks.framework.landscapes import ReferenceGP
from benchmarks.framework.replicate import OBSERVE, Record, Replicate, stream_seed
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.sequential import box
from benchmarks.framework.surrogates import Surrogate, with_data
from botorch_calib import ChanceConstraint
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place, best_certified

# Numbers of random streams, which must not change, see `framework.replicate`.
DESIGN, CHOICES = 30, 31


class Limited(Protocol):
    """An outcome that has to be at most ``limit`` with probability ``level`` or more."""

    @property
    def limit(self) -> float:
        """The limit."""

    @property
    def level(self) -> float:
        """The probability."""

    def violation_probability(self, U: Tensor, time: float) -> Tensor:
        """True probability, ``n x 1``, that an outcome exceeds the limit."""

    def room(self, U: Tensor, time: float) -> Tensor:
        """By how much outcomes could increase and still be safe, ``n x 1``; negative if unsafe."""


class Certifier(Protocol):
    """States the chance constraint of each round of a replicate."""

    def constraint(self, gp: SingleTaskGP, time: float = 1.0) -> ChanceConstraint:
        """The constraint of a round, from the Gaussian process of the outcomes so far.

        The ``time`` runs from 0 to 1. Only oracles know how the outcome depends on it.
        """

    def observe(self, constraint: ChanceConstraint, x: Tensor, y: Tensor) -> None:
        """Learn from the outcome ``y`` (``1 x 1``) at the choice ``x`` (``1 x d``)."""


@dataclass(frozen=True)
class Unlearning:
    """A certifier whose constraint depends only on the present model and the time.

    Args:
        state: Maps the model and the time to the constraint.
    """

    state: Callable[[SingleTaskGP, float], ChanceConstraint]

    def constraint(self, gp: SingleTaskGP, time: float = 1.0) -> ChanceConstraint:
        return self.state(gp, time)

    def observe(self, constraint: ChanceConstraint, x: Tensor, y: Tensor) -> None:
        """Do nothing."""


class Round(NamedTuple):
    """The model of the objective and the constraint of a round, which determine its choice."""

    objective: SingleTaskGP
    constraint: ChanceConstraint


@dataclass(frozen=True)
class DecisionMethod:
    """Makes a certifier. Its description is part of a result's configuration.

    Args:
        name: The name, unique within a suite.
    """

    name: str

    def surrogate(self, given: Surrogate) -> Surrogate:
        """The surrogate of the outcome, made from the surrogate of the task."""
        return given

    def start(self, outcome: Limited) -> Certifier:
        """The certifier of one replicate, which may use only the limit and level of the outcome.

        `Oracle` is an exception: it uses the true distribution, as a reference for other methods.
        """
        raise NotImplementedError

    def acquisition(self, model: Round, X: Tensor, limit: float) -> AcquisitionFunction | None:
        """The function that a method without certificates maximises over all points.

        None if the method certifies points.

        Args:
            model: The models of the round.
            X: The points so far, ``n x d``.
            limit: The limit of the outcome.
        """
        return None


def replicate(task: DecisionTask, method: DecisionMethod, seed: int) -> Result:
    """Run ``method`` on ``task``; the result is deterministic, except for wall times."""
    return DecisionReplicate(task, method, seed).run()


class DecisionReplicate(Replicate[Any, DecisionMethod, Round]):
    """Each round certifies and chooses a point, and observes the objective and the outcome."""

    def __init__(self, task: DecisionTask, method: DecisionMethod, seed: int) -> None:
        super().__init__(task, method, seed, task.num_rounds)
        self.bounds = box(task.objective.bounds)
        self.reference = ReferenceGP(task.noisy_objective())
        self.surrogate = method.surrogate(task.surrogate)
        self.certifier = method.start(task.outcome)
        self.gp: SingleTaskGP | None = None
        self.X = cube(task.dim, task.num_initial, seed=stream_seed(seed, DESIGN))
        self.objectives, self.outcomes = self._observe(self.X, step=0, time=0.0)
        self.rounds: dict[str, list[float | None]] = {}

    def fit(self, step: int) -> Round:
        self.gp = self.surrogate(self.X, self.outcomes, self.bounds, step, self.gp)
        objective = with_data(self.reference(), self.X, self.objectives)
        constraint = self.certifier.constraint(self.gp, self._time(step))
        return Round(objective.eval(), constraint)

    def propose(self, model: Round) -> Tensor:
        beta = self.problem.search.beta
        return self._best(UpperConfidenceBound(model.objective, beta=beta), model.constraint)[0]

    def evaluate(self, x: Tensor, model: Round, step: int) -> None:
        time = self._time(step)
        objective, outcome = self._observe(x, step + 1, time)
        limited = self.problem.outcome
        with torch.no_grad():
            margin = model.constraint.margin(x.unsqueeze(-2)).item()
        self._note(
            certified=float(margin >= 0.0),
            quantile=limited.limit - margin,
            outcome=outcome.item(),
            violated=float(outcome.item() > limited.limit),
            probability=limited.violation_probability(x, time).item(),
        )
        self.certifier.observe(model.constraint, x, outcome)
        self.X = torch.cat([self.X, x])
        self.objectives = torch.cat([self.objectives, objective])
        self.outcomes = torch.cat([self.outcomes, outcome])

    def record(self) -> Record:
        """The record of the replicate.

        ``y`` and ``f`` are values of the objective. Extras with one entry for each round: whether
        the choice was ``certified``, its stated ``quantile``, its ``outcome``, whether the outcome
        ``violated`` the limit, and the true ``probability`` of a violation. Extras with one entry:
        the best value among truly safe points (``best_value``) and, if a point is recommended after
        the last round, its objective (``recommended_value``) and its true probability of a
        violation (``recommended_probability``).
        """
        extras = {**self.rounds, **self._recommendation()}
        f = self.problem.objective(self.X).squeeze(-1).tolist()
        y = self.objectives.squeeze(-1).tolist()
        return Record(self.problem.num_initial, self.X.tolist(), y, f, extras)

    def _recommendation(self) -> dict[str, list[float | None]]:
        with self.choosing(self.num_steps):
            model = self.fit(self.num_steps)
            # A method may recommend a point with another confidence than in the rounds.
            confidence = getattr(self.method, "confidence", None)
            acqf = PosteriorMean(model.objective)
            x, certified = self._best(acqf, model.constraint, confidence)
        value = self.problem.objective(x).item()
        probability = self.problem.outcome.violation_probability(x, time=1.0).item()
        return {
            "best_value": [self.problem.objective(self.problem.best_safe_point()).item()],
            "recommended_value": [value if certified else None],
            "recommended_probability": [probability if certified else None],
        }

    def _best(
        self,
        acqf: AcquisitionFunction,
        constraint: ChanceConstraint,
        confidence: float | None = None,
    ) -> tuple[Tensor, bool]:
        """The best certified point ``1 x d`` of a two-step search, and whether there is one."""
        search, seed = self.problem.search, stream_seed(self.seed, CHOICES, self._decided())
        spread = torch.cat([cube(self.problem.dim, search.num_global, seed), self.X])
        margin = LeastMargin(constraint, confidence)
        centre, _ = best_certified(acqf, margin, Place(None, choices=spread))
        around = torch.cat([centre, (centre + self._offsets(seed)).clamp(0.0, 1.0)])
        return best_certified(acqf, margin, Place(None, choices=around))

    def _decided(self) -> int:
        """Number of choices so far."""
        return len(self.X) - self.problem.num_initial

    def _offsets(self, seed: int) -> Tensor:
        search = self.problem.search
        num = search.num_local // len(search.spreads)
        with manual_seed(seed):
            steps = torch.randn(len(search.spreads), num, self.problem.dim, dtype=self.X.dtype)
        return (self.X.new_tensor(search.spreads).view(-1, 1, 1) * steps).flatten(0, 1)

    def _observe(self, X: Tensor, step: int, time: float) -> tuple[Tensor, Tensor]:
        """Noisy objective and outcome at ``n x d`` points, ``n x 1`` each."""
        with manual_seed(stream_seed(self.seed, OBSERVE, step)):
            return (
                self.problem.noisy_objective().observe(X),
                self.problem.outcome.observe(X, time),
            )

    def _time(self, step: int) -> float:
        """The time, from 0 before the first round to 1 in the last round and after it."""
        return min((step + 1) / self.num_steps, 1.0)

    def _note(self, **values: float) -> None:
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"Round {len(self.X)} has the {name} {value!r}.")
            self.rounds.setdefault(name, []).append(value)
