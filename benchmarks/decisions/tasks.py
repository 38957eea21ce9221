"""The tasks of suite `decisions_budget`: an objective and a limited outcome of the same inputs.

In each of 100 rounds a method chooses inputs and observes the objective and the outcome there, both
with noise. The outcome has to be at most ``limit`` with a probability of 90 %. Inputs lie in the
unit cube. Functions are shifted and scaled to mean 0 and standard deviation 1 over the cube, so
that noise, limits and rewards have these units.

Functions by the name of the outcome, each with another function as the objective, maximised:

* ``ackley`` (2-d, on [-5, 5]^2) with Branin, ``styblinski_tang`` (2-d) with the six-hump camel,
  ``hartmann3`` and ``hartmann4`` with Rosenbrock (3-d and 4-d).
* The limit is chosen so that half of the box is truly safe. The best safe point then lies on the
  border, well below the objective's maximum.

Five cases:

* ``right``: the outcome's Gaussian process has the hyperparameters of a process fitted to 60 d
  other noisy points. Gaussian noise with standard deviation 0.3.
* ``noise``: as in ``right``, but the given noise variance is ten times too small, like reported
  standard errors that leave out variation from day to day. Gaussian noise with standard
  deviation 0.5.
* ``heteroscedastic``: the standard deviation of the noise rises from 0.05 to 0.8 along the first
  input, but the Gaussian process has one noise variance. It is fitted in every tenth round.
* ``lengthscale``: as in ``right``, but the lengthscale is five times too long, as if it came from a
  smoother task. Gaussian noise with standard deviation 0.1.
* ``drift``: the outcome rises linearly, by 0.5 over the run, but the Gaussian process ignores time.
  It is fitted in every tenth round. Gaussian noise with standard deviation 0.3. Half of the box is
  safe in the middle of the run.

The noise of the second to fourth case is as in suite `misspecified`. The fifth case is drift, since
tools wear, catalysts age and detectors warm up, which makes earlier data too optimistic. Heavy
tails are left out: a Gaussian that is fitted to them has a 90 % quantile that is too wide, which
costs reward but breaks no limit.

The objective is the same in all cases, with right hyperparameters and Gaussian noise with standard
deviation 0.1. Only the outcome differs between cases.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch
from botorch.test_functions.base import BaseTestProblem
from botorch.test_functions.synthetic import (
    Branin,
    Hartmann,
    Rosenbrock,
    SixHumpCamel,
    StyblinskiTang,
)
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.calibration.misspecified import ackley
from benchmarks.framework.landscapes import GaussianNoise, Noise, NoisyLandscape, ReferenceGP
from benchmarks.framework.sequential import Bounds, sobol_design
from benchmarks.framework.surrogates import Fixed, Refitted, Surrogate

LEVEL = 0.9
REFIT_EVERY = 10

# Numbers of points for standardising functions, setting limits, and finding the best safe point.
SPREAD_POINTS, LIMIT_POINTS, SEARCH_POINTS = 2**12, 2**14, 2**16


@dataclass(frozen=True)
class Standardized:
    """A test function on the unit cube with mean 0 and standard deviation 1 over it.

    Args:
        function: Makes a BoTorch test function, whose values are not negated.
        dim: Number of inputs.
    """

    function: Callable[[], BaseTestProblem]
    dim: int

    @property
    def bounds(self) -> Bounds:
        return ((0.0, 1.0),) * self.dim

    def spread(self) -> float:
        return 1.0

    def __call__(self, X: Tensor) -> Tensor:
        mean, deviation = moments(self)
        return (self.raw(X) - mean) / deviation

    def raw(self, U: Tensor) -> Tensor:
        """Values ``n x 1`` before standardisation."""
        function = self.function()
        lower, upper = torch.as_tensor(function.bounds).to(U)
        values: Tensor = function.evaluate_true(lower + (upper - lower) * U)
        return values.unsqueeze(-1)


@cache
def moments(surface: Standardized) -> tuple[float, float]:
    """Mean and standard deviation of the raw values over the box."""
    values = surface.raw(cube(surface.dim, SPREAD_POINTS, seed=0))
    return float(values.mean()), float(values.std())


@dataclass(frozen=True)
class LimitedOutcome:
    """An outcome that has to stay below a limit. Times run from 0 to 1 over the rounds.

    Args:
        surface: The mean at time 0.
        noise: The noise.
        drift: The linear rise of the mean from time 0 to 1.
        safe_share: Share of the box that is truly safe at time 0.5, which determines the limit.
        level: The required probability that the outcome is at most the limit.
        jump: The sudden rise of the mean after time 0.5.
        grid: Width of the grid to which outcomes are rounded. The limit lies on the grid.
    """

    surface: Standardized
    noise: Noise
    drift: float = 0.0
    safe_share: float = 0.5
    level: float = LEVEL
    # None instead of 0, which does not change older configurations.
    jump: float | None = None
    grid: float | None = None

    @property
    def limit(self) -> float:
        return _limit(self)

    def observe(self, U: Tensor, time: float) -> Tensor:
        return self._rounded(self._mean(U, time) + self.noise(U))

    def violation_probability(self, U: Tensor, time: float) -> Tensor:
        """True probability, ``n x 1``, that an outcome exceeds the limit."""
        return self.noise.exceedance(U, self._most - self._mean(U, time))

    def quantile(self, U: Tensor, time: float) -> Tensor:
        """The true ``level``-quantile of outcomes, ``n x 1``."""
        return self._rounded(self.quantile_before_rounding(U, time))

    def quantile_before_rounding(self, U: Tensor, time: float) -> Tensor:
        """The true quantile if outcomes were not rounded."""
        return self._mean(U, time) + self.noise.quantile(U, self.level)

    def room(self, U: Tensor, time: float) -> Tensor:
        """By how much outcomes could increase and still be safe, ``n x 1``; negative if unsafe."""
        return self._most - self.quantile_before_rounding(U, time)

    @property
    def _most(self) -> float:
        """The largest value before rounding that does not exceed the limit."""
        return self.limit + 0.5 * (self.grid or 0.0)

    def _mean(self, U: Tensor, time: float) -> Tensor:
        jump = self.jump if self.jump is not None and time > 0.5 else 0.0
        return self.surface(U) + (self.drift * time + jump)

    def _rounded(self, values: Tensor) -> Tensor:
        if self.grid is None:
            return values
        return self.limit + self.grid * ((values - self.limit) / self.grid).round()

    def safe(self, U: Tensor, time: float) -> Tensor:
        """Whether outcomes keep the limit with probability ``level`` at each of ``n`` points."""
        return (self.quantile(U, time) <= self.limit).squeeze(-1)


@cache
def _limit(outcome: LimitedOutcome) -> float:
    U = cube(outcome.surface.dim, LIMIT_POINTS, seed=2)
    quantiles = outcome.quantile_before_rounding(U, time=0.5)
    return float(quantiles.quantile(outcome.safe_share)) - 0.5 * (outcome.grid or 0.0)


@dataclass(frozen=True)
class Search:
    """The search of all methods for the best certified point, in two steps.

    The first step searches among points spread over the box and the evaluated points, the second
    step among points around the best of these.

    Args:
        num_global: Number of points spread over the box.
        num_local: Number of points around the best point.
        spreads: Standard deviations of the points around it, each for an equal part of them.
        beta: ``beta`` of the maximised upper confidence bound on the objective.
    """

    num_global: int = 512
    num_local: int = 256
    spreads: tuple[float, ...] = (0.1, 0.01)
    beta: float = 4.0


@dataclass(frozen=True)
class DecisionTask:
    """An objective to be maximised while an outcome stays below its limit.

    Args:
        name: The name, unique within a suite.
        objective: The objective.
        outcome: The outcome.
        surrogate: Makes the Gaussian process of the outcome.
        num_initial: Number of initial points, spread over the box, safe or not.
        num_rounds: Number of rounds after them.
        objective_noise: Standard deviation of the objective's noise.
        search: The search for the best certified point.
    """

    name: str
    objective: Standardized
    outcome: LimitedOutcome
    surrogate: Surrogate
    num_initial: int
    num_rounds: int = 100
    objective_noise: float = 0.1
    search: Search = Search()

    @property
    def dim(self) -> int:
        return self.objective.dim

    def noisy_objective(self) -> NoisyLandscape:
        """The objective with its noise."""
        noise = GaussianNoise(self.objective_noise, self.objective_noise)
        return NoisyLandscape(self.objective, noise)

    def best_safe_point(self) -> Tensor:
        """The point ``1 x d`` with the largest objective among points truly safe at the end."""
        return _best_safe_point(self.objective, self.outcome)


@cache
def _best_safe_point(objective: Standardized, outcome: LimitedOutcome) -> Tensor:
    """Random search with decreasing steps around the best points, without gradients."""
    U = cube(objective.dim, SEARCH_POINTS, seed=3)
    with manual_seed(3):
        for step in range(30):
            values = objective(U).squeeze(-1)
            values = values.masked_fill(~outcome.safe(U, time=1.0), -torch.inf)
            best = U[values.topk(32).indices]
            steps = 0.1 * 0.75**step * torch.randn(64, *best.shape, dtype=U.dtype)
            U = torch.cat([best, (best + steps).clamp(0.0, 1.0).flatten(0, 1)])
    return best[:1]


def cube(dim: int, num_points: int, seed: int) -> Tensor:
    """Scrambled Sobol points ``num_points x dim`` of the unit cube."""
    return sobol_design(num_points, seed, bounds=((0.0, 1.0),) * dim)


# ------------------------------------------------------------ the functions and the cases


# The outcome's function and the objective, by the name of the first.
FUNCTIONS: dict[str, tuple[Standardized, Standardized]] = {
    "ackley": (Standardized(ackley, 2), Standardized(Branin, 2)),
    "styblinski_tang": (
        Standardized(partial(StyblinskiTang, dim=2), 2),
        Standardized(SixHumpCamel, 2),
    ),
    "hartmann3": (
        Standardized(partial(Hartmann, dim=3), 3),
        Standardized(partial(Rosenbrock, dim=3), 3),
    ),
    "hartmann4": (
        Standardized(partial(Hartmann, dim=4), 4),
        Standardized(partial(Rosenbrock, dim=4), 4),
    ),
}


@dataclass(frozen=True)
class Case:
    """One way in which the outcome's Gaussian process is right or wrong.

    Args:
        noise: Noise of the outcome.
        drift: See `LimitedOutcome`.
        jump: See `LimitedOutcome`.
        grid: See `LimitedOutcome`.
        safe_share: Share of the box that is safe.
        fitted: A surrogate that fits hyperparameters to the data of the run (default: given ones).
        lengthscale_factor: Factor of the given lengthscale.
        noise_factor: Factor of the given noise variance.
        points_per_dimension: Number of initial points divided by the dimension.
        num_rounds: Number of rounds after them.
    """

    noise: Noise
    drift: float = 0.0
    jump: float | None = None
    grid: float | None = None
    safe_share: float = 0.5
    fitted: Refitted | None = None
    lengthscale_factor: float = 1.0
    noise_factor: float = 1.0
    points_per_dimension: int = 5
    num_rounds: int = 100

    def task(self, name: str, limited: Standardized, objective: Standardized) -> DecisionTask:
        """A pair of functions in this case."""
        outcome = LimitedOutcome(
            limited, self.noise, self.drift, self.safe_share, jump=self.jump, grid=self.grid
        )
        return DecisionTask(
            name=name,
            objective=objective,
            outcome=outcome,
            surrogate=self.surrogate(outcome),
            num_initial=self.points_per_dimension * objective.dim,
            num_rounds=self.num_rounds,
        )

    def surrogate(self, outcome: LimitedOutcome) -> Surrogate:
        if self.fitted is not None:
            return self.fitted
        reference = ReferenceGP(NoisyLandscape(outcome.surface, outcome.noise))
        return Fixed(reference, self.lengthscale_factor, self.noise_factor)


FITTED = Refitted(every=REFIT_EVERY)


CASES: dict[str, Case] = {
    "right": Case(GaussianNoise(0.3, 0.3)),
    "noise": Case(GaussianNoise(0.5, 0.5), noise_factor=0.1),
    "heteroscedastic": Case(GaussianNoise(0.05, 0.8), fitted=FITTED),
    "lengthscale": Case(GaussianNoise(0.1, 0.1), lengthscale_factor=5.0),
    "drift": Case(GaussianNoise(0.3, 0.3), drift=0.5, fitted=FITTED),
}


def task(function: str, case: str) -> DecisionTask:
    """One pair of functions in one case."""
    return CASES[case].task(f"{function}_{case}", *FUNCTIONS[function])


def tasks() -> tuple[DecisionTask, ...]:
    return tuple(task(function, case) for case in CASES for function in FUNCTIONS)
