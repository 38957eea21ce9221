"""The tasks of suite `decisions`: an objective and a limited outcome on the same inputs, five ways.

In each of 100 rounds a method chooses inputs, and then sees the objective and the outcome there,
each with its noise. The outcome shall be at most ``limit`` with a probability of 90 %. Everything
lives on the unit cube, and functions are shifted and scaled to mean 0 and standard deviation 1 over
it, so that noise, limits and rewards are all in units of a spread.

Functions, by the name of the limited one, each with another one as the objective, maximised:

* ``ackley`` (2-d, on [-5, 5]^2) with Branin, ``styblinski_tang`` (2-d) with the six-hump camel,
  ``hartmann3`` and ``hartmann4`` with Rosenbrock (3-d and 4-d).
* The limit is such that half of the box is truly safe; the best safe point then lies on the border,
  well below the objective's maximum.

Cases:

* ``right``: the outcome's Gaussian process has the hyperparameters of one fitted to 60 d other
  noisy points, as right as its kind can be. Gaussian noise of 0.3.
* ``noise``: likewise, but the noise variance is given ten times too small, as by reported standard
  errors that leave out what changes from day to day. Gaussian noise of 0.5.
* ``heteroscedastic``: noise from 0.05 to 0.8 along the first input, while the Gaussian process has
  one noise variance. It is fitted in every tenth round.
* ``lengthscale``: hyperparameters as in ``right``, but a lengthscale five times too long, as one
  that was carried over from a smoother task. Gaussian noise of 0.1.
* ``drift``: the outcome rises steadily, by 0.5 over the rounds, while the Gaussian process knows no
  time. It is fitted in every tenth round. Gaussian noise of 0.3; half of the box is safe at half
  time.

Noise of the second to fourth case is that of suite `misspecified`. The fifth is drift and not heavy
tails: tools wear, catalysts age and detectors warm up, and what has been learned then goes out of
date in the unsafe direction. Heavy tails, fitted by a Gaussian, make its 90 % quantile too wide
instead (intervals stated at 80 % hold 88 % at random points, as the page on results has it), which
costs reward but breaks no promise.

The objective is the same in all cases, with Gaussian noise of 0.1 and hyperparameters as right as
those of ``right``: what differs is the limited outcome alone.
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

# Points on which functions are standardised, limits are set, and the best safe point is looked for.
SPREAD_POINTS, LIMIT_POINTS, SEARCH_POINTS = 2**12, 2**14, 2**16


@dataclass(frozen=True)
class Standardized:
    """A test function on the unit cube with mean 0 and standard deviation 1 over it.

    Args:
        function: Makes a BoTorch test function; its values are taken as they are, not negated.
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
        """Values ``n x 1`` as they were before."""
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
    """The outcome that shall stay below a limit. Times run from 0 to 1 over the rounds.

    Args:
        surface: Its mean at time 0.
        noise: Its noise.
        drift: By how much its mean rises in all, steadily.
        safe_share: Share of the box that is truly safe at half time, which sets the limit.
        level: The probability with which it shall be below the limit.
        jump: By how much its mean rises at once, after half time.
        grid: Width of the grid that it is rounded to, on which the limit lies.
    """

    surface: Standardized
    noise: Noise
    drift: float = 0.0
    safe_share: float = 0.5
    level: float = LEVEL
    # None where there is none, which leaves older configurations as they were.
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
        """Likewise, if outcomes were not rounded."""
        return self._mean(U, time) + self.noise.quantile(U, self.level)

    def room(self, U: Tensor, time: float) -> Tensor:
        """How much higher outcomes could be and still be safe, ``n x 1``: negative if unsafe."""
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
        """Whether outcomes at each point are below the limit with probability ``level``: ``n``."""
        return (self.quantile(U, time) <= self.limit).squeeze(-1)


@cache
def _limit(outcome: LimitedOutcome) -> float:
    U = cube(outcome.surface.dim, LIMIT_POINTS, seed=2)
    quantiles = outcome.quantile_before_rounding(U, time=0.5)
    return float(quantiles.quantile(outcome.safe_share)) - 0.5 * (outcome.grid or 0.0)


@dataclass(frozen=True)
class Search:
    """How all methods look for the best certified point: in two steps, among given points.

    First among points spread over the box and those evaluated so far, then around the best of them.

    Args:
        num_global: Number of points spread over the box.
        num_local: Number of points around the best one.
        spreads: Standard deviations of these around it, each for an equal part of them.
        beta: Of the upper confidence bound on the objective that is maximised.
    """

    num_global: int = 512
    num_local: int = 256
    spreads: tuple[float, ...] = (0.1, 0.01)
    beta: float = 4.0


@dataclass(frozen=True)
class DecisionTask:
    """An objective to be maximised while an outcome stays below its limit.

    Args:
        name: Names the result folder.
        objective: The objective.
        outcome: The outcome that is limited.
        surrogate: Makes the Gaussian process of the outcome that methods are given.
        num_initial: Number of initial points, spread over the box, safe or not.
        num_rounds: Number of rounds after them.
        objective_noise: Standard deviation of the objective's noise.
        search: How methods look for the best certified point.
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
        """The objective as it is observed."""
        noise = GaussianNoise(self.objective_noise, self.objective_noise)
        return NoisyLandscape(self.objective, noise)

    def best_safe_point(self) -> Tensor:
        """Where the objective is largest among points that are truly safe at the end, ``1 x d``."""
        return _best_safe_point(self.objective, self.outcome)


@cache
def _best_safe_point(objective: Standardized, outcome: LimitedOutcome) -> Tensor:
    """By random search, ever closer around the best points: no gradients are needed."""
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


# The limited function and the objective, by the name of the first.
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
        drift: Its drift.
        jump: Its jump at half time.
        grid: The grid that it is rounded to.
        safe_share: Share of the box that is safe.
        fitted: How hyperparameters are fitted to the data of the run, if they are.
        lengthscale_factor: Otherwise, by how much the lengthscale is too long.
        noise_factor: Otherwise, by how much the noise variance is too large.
        points_per_dimension: Number of initial points for each dimension.
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
