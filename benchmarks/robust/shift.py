"""Suite `robust_shift`: the shift of contexts and the radius at which robustness pays.

The stated distribution of the single context is N(0.5, 0.1^2), given by 64 points. The true
distribution is the same distribution moved by a shift and clipped to the range of contexts. The
Wasserstein distance of the two is the size of the shift, so a ball of this radius just contains the
truth. The suite varies the shift, and the radius of the ball around the stated distribution. The
loop is the loop of suite `robust`, with 40 rounds.

There are three functions. In `context_shift` the decision trades the best value for less dependence
on the context. In `newsvendor` a lower demand than stated hurts more than a higher demand helps,
and its shift is downward. In `ackley` the best decision is the same in any context, so robustness
can only do harm.

A method knows nothing about the true distribution except the observed contexts. The *measured*
radius is the Wasserstein distance of the last contexts to the stated distribution, minus the mean
distance of equally many draws from the stated distribution, which is not zero. Without a shift, the
measured radius is zero in about half of the rounds; with a shift, it soon approaches its size.
Method `observed` has no ball and uses the expectation over all observed contexts instead.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from scipy.stats import wasserstein_distance
from torch import Tensor

from benchmarks.framework.replicate import Record
from benchmarks.framework.replicate_result import Result
from benchmarks.problems import ContextualAckley
from benchmarks.robust.methods import (
    RobustBO,
    RobustBOStrategy,
    Situation,
    empirical_risk,
    wasserstein,
    wasserstein_exact,
)
from benchmarks.robust.replicate import (
    REFERENCE_POINTS,
    ContextualReplicate,
    ContextualTask,
    History,
)
from botorch_calib.acquisition import RobustUpperConfidenceBound
from botorch_calib.optim import optimize_robust
from botorch_calib.robust import ContextDistribution, WassersteinBall
from botorch_calib.test_functions import ContextShift, ContextualProblem, Newsvendor

MEAN, STD = 0.5, 0.1
SHIFTS = (0.0, 0.05, 0.1, 0.2)
RADII = (0.05, 0.1, 0.2)
# Functions, with the sign of the shift that hurts.
FUNCTIONS: dict[str, tuple[Callable[[], ContextualProblem], float]] = {
    "context_shift": (ContextShift, 1.0),
    "newsvendor": (Newsvendor, -1.0),
    "ackley": (ContextualAckley, 1.0),
}
NUM_ROUNDS = 40
# Largest number of iterations of searches over a ball, which kinks would make long.
MAXITER = 20

# The measured radius: number of last contexts, and number of resamples for the mean distance.
RECENT, RESAMPLES = 20, 64
# The evaluation: atoms of a distribution, further atoms of the worst case, and decisions per axis
# for the optimum.
ATOMS, PLACES, DECISIONS = 64, 61, {1: 2001, 2: 41}


@dataclass(frozen=True)
class ShiftTask(ContextualTask):
    """A function whose contexts are shifted.

    Args:
        shift: The shift of the true distribution relative to the stated distribution.
    """

    shift: float = 0.0


def quantiles(num: int, shift: float, bounds: Tensor) -> Tensor:
    """``num`` equally likely points of the shifted stated distribution, ``num x 1``."""
    levels = (torch.arange(num, dtype=torch.double) + 0.5) / num
    points = MEAN + shift + STD * torch.special.ndtri(levels)
    return points.clamp(bounds[0, 0], bounds[1, 0]).unsqueeze(-1)


class ShiftReplicate(ContextualReplicate):
    """A replicate with shifted contexts."""

    problem: ShiftTask

    def __init__(self, task: ShiftTask, method: ShiftBO, seed: int) -> None:
        self.promised: list[float] = []
        self.radii: list[float] = []
        super().__init__(task, method, seed)

    def draw_contexts(self, num: int, draws: torch.Generator) -> Tensor:
        """Normal contexts around the shifted mean, within the range of contexts."""
        lower, upper = self.function.context_bounds
        z = torch.randn(num, 1, dtype=torch.double, generator=draws)
        return (MEAN + self.problem.shift + STD * z).clamp(lower, upper)

    def evaluate(self, x: Tensor, model: Model, step: int) -> None:
        strategy = self.strategy
        assert isinstance(strategy, ShiftStrategy)
        self.promised.append(strategy.promise(x))
        self.radii.append(strategy.acquisition.ambiguity.radius)  # type: ignore[attr-defined]
        super().evaluate(x, model, step)

    def record(self) -> Record:
        """The record of the replicate.

        Its extras have one entry for each round. Regrets are differences to the best decision under
        the same criterion: ``regret`` is the expectation under the true distribution,
        ``nominal_regret`` under the stated distribution, and ``worst_regret`` under the worst
        distribution of the ball around it whose radius is the size of the shift. ``radius`` is the
        radius of the method's ball. The method promises the worst case of the posterior mean over
        its ball (without a ball, the expectation); ``surplus`` is the true expectation minus this.
        """
        task, first = self.problem, self.problem.num_initial
        chosen = self.X[first:, : self.function.num_decisions]
        values = criteria(self.function, task.shift, chosen)
        best = optima(task)
        regrets = {name: (best[name] - values[name]).clamp(min=0.0) for name in values}
        return Record(
            num_initial=first,
            X=self.X.tolist(),
            y=self.y,
            f=self.f,
            extras={
                "regret": regrets["truth"].tolist(),
                "cumulative_regret": regrets["truth"].cumsum(dim=0).tolist(),
                "nominal_regret": regrets["nominal"].tolist(),
                "worst_regret": regrets["worst"].tolist(),
                "surplus": (values["truth"] - values["truth"].new_tensor(self.promised)).tolist(),
                "radius": list(self.radii),
            },
        )


def criteria(problem: ContextualProblem, shift: float, X: Tensor) -> dict[str, Tensor]:
    """Expectations at ``n x d_x`` decisions: true, stated and in the worst case."""
    bounds = problem.context_bounds
    stated, true = (quantiles(ATOMS, s, bounds) for s in (0.0, shift))
    places = torch.linspace(float(bounds[0]), float(bounds[1]), PLACES, dtype=torch.double)
    centre = ContextDistribution.empirical(stated).with_candidates(places.unsqueeze(-1))
    ball = WassersteinBall(abs(shift))

    def at(contexts: Tensor) -> Tensor:
        shape = (len(X), len(contexts), -1)
        joint = torch.cat([X.unsqueeze(1).expand(shape), contexts.expand(shape)], dim=-1)
        return problem(joint, noise=False)

    return {
        "truth": at(true).mean(dim=-1),
        "nominal": at(stated).mean(dim=-1),
        "worst": ball.worst_case(at(centre.points), centre),
    }


@cache
def optima(task: ShiftTask) -> dict[str, Tensor]:
    """The largest value of each criterion, on a grid of decisions."""
    problem = task.build()
    lower, upper = problem.decision_bounds
    dim = problem.num_decisions
    unit = torch.linspace(0.0, 1.0, DECISIONS[dim], dtype=torch.double)
    grid = torch.cartesian_prod(*[unit] * dim).reshape(-1, dim)
    values = criteria(problem, task.shift, lower + (upper - lower) * grid)
    return {name: value.max() for name, value in values.items()}


def measured_radius(recent: Tensor, stated: Tensor, seed: int = 0) -> float:
    """The Wasserstein distance of contexts to a distribution, minus the mean distance of draws.

    Contexts have one coordinate. If they have the stated spread, the mean of the result is at most
    the true distance, except for the clipping at 0. The reason is the triangle inequality: the
    distance to the stated distribution is at most the distance to the true distribution, whose mean
    is subtracted, plus the distance of the two. For a pure shift the mean is smaller than the true
    distance: by 0.03 for 20 contexts with a spread of 0.1.

    Args:
        recent: The contexts, ``n x 1``.
        stated: Equally likely points of the distribution, ``m x 1``.
        seed: Seed of the draws.
    """
    points, observed = stated.flatten().numpy(), recent.flatten().numpy()
    draws = np.random.default_rng(seed).choice(points, (RESAMPLES, len(observed)))
    by_chance = np.mean([wasserstein_distance(draw, points) for draw in draws])
    return max(0.0, float(wasserstein_distance(observed, points) - by_chance))


@dataclass(frozen=True)
class ShiftBO(RobustBO):
    """A method, defined by its ambiguity set, radius and centre.

    Args:
        radius: Radius of the ball; None for the measured radius.
        observed: Whether the centre consists of the observed contexts instead of the stated points.
    """

    radius: float | None = 0.0
    observed: bool = False

    def start(self, task: ContextualTask, problem: ContextualProblem) -> ShiftStrategy:
        return ShiftStrategy(self, task, problem)

    def maximised(self, acquisition: AcquisitionFunction, bounds: Tensor) -> Tensor:
        """The maximiser over decisions, ``1 x d_x``."""
        if self.acquisition is wasserstein:
            return optimize_robust(acquisition, bounds, self.num_restarts, self.raw_samples)[0]
        return super().maximised(acquisition, bounds)


class ShiftStrategy(RobustBOStrategy):
    """The strategy of a `ShiftBO`.

    Attributes:
        acquisition: The acquisition function of the last choice.
    """

    settings: ShiftBO
    acquisition: RobustUpperConfidenceBound

    def _stated(self) -> Tensor:
        return quantiles(REFERENCE_POINTS, 0.0, self.problem.context_bounds)

    def _met(self, history: History) -> Tensor:
        return history.X[:, self.problem.num_decisions :]

    def radius(self, history: History) -> float:
        """The radius of the ball in this round."""
        if self.settings.radius is not None:
            return self.settings.radius
        return measured_radius(self._met(history)[-RECENT:], self._stated())

    def acquisition_function(self, model: Model, history: History) -> RobustUpperConfidenceBound:
        """The acquisition function of this round."""
        centre = self._met(history) if self.settings.observed else self._stated()
        situation = Situation(centre, self.problem.context_bounds, self.radius(history))
        assert self.settings.acquisition is not None
        acquisition = self.settings.acquisition(model, situation)
        assert isinstance(acquisition, RobustUpperConfidenceBound)
        self.acquisition = acquisition
        return acquisition

    def promise(self, x: Tensor) -> float:
        """The worst case of the posterior mean at decisions ``d_x``, by the last model and ball."""
        bound = copy(self.acquisition)
        bound.beta = 0.0
        with torch.no_grad():
            return float(bound(x.reshape(1, 1, -1)))


def replicate(task: ShiftTask, method: ShiftBO, seed: int) -> Result:
    """Run ``method`` on ``task``; the result is deterministic, except for wall times."""
    return ShiftReplicate(task, method, seed).run()


def tasks() -> tuple[ShiftTask, ...]:
    return tuple(
        ShiftTask(f"{name}_{shift:g}", build, num_rounds=NUM_ROUNDS, shift=sign * shift)
        for name, (build, sign) in FUNCTIONS.items()
        for shift in SHIFTS
    )


def compared() -> tuple[ShiftBO, ...]:
    balls = {"wdrbo": wasserstein, "exact": wasserstein_exact}
    return (
        ShiftBO("erbo", empirical_risk),
        ShiftBO("observed", empirical_risk, observed=True),
        *[
            ShiftBO(f"{name}_{radius:g}", make, maxiter=MAXITER, radius=radius)
            for name, make in balls.items()
            for radius in RADII
        ],
        *[
            ShiftBO(f"{name}_measured", make, maxiter=MAXITER, radius=None)
            for name, make in balls.items()
        ],
    )
