"""Outcomes with standard errors that are too small: the problems of suite `understated_noise`.

The protocol is ``benchmarks/protocols/understated_noise.md``. Six functions, maximised: the four of
suite `misspecified`, Levy's function in four dimensions and Hartmann's in six. The noise is
Gaussian, half a standard deviation of the function over the box in size. A user passes its
variance ten times too small, as ``train_Yvar``, so that BoTorch takes it for true: reported
standard errors often leave out what changes from day to day. All other hyperparameters are those of
a Gaussian process fitted to 60 d other noisy points, as in suite `misspecified`: what is wrong is
the noise alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from botorch.models import SingleTaskGP
from botorch.test_functions.base import BaseTestProblem
from botorch.test_functions.synthetic import Hartmann, Levy
from torch import Tensor

from benchmarks.calibration import misspecified
from benchmarks.framework.landscapes import Landscape, NoisyLandscape, ReferenceGP, noise_deviation
from benchmarks.framework.sequential import Problem, bounds_of, sobol_design
from benchmarks.framework.surrogates import with_data

# By number of dimensions.
NUM_INITIAL = {2: 5, 3: 8, 4: 10, 6: 14}
NUM_EVALUATIONS = {2: 40, 3: 40, 4: 60, 6: 60}


def levy4() -> BaseTestProblem:
    """Levy in four dimensions."""
    return Levy(dim=4)


def hartmann6() -> BaseTestProblem:
    """Hartmann in six dimensions."""
    return Hartmann(dim=6)


FUNCTIONS: dict[str, Callable[[], BaseTestProblem]] = {
    **misspecified.FUNCTIONS,
    "levy4": levy4,
    "hartmann6": hartmann6,
}


@dataclass(frozen=True)
class ReportedErrors:
    """A Gaussian process that takes reported variances of the outcomes for true.

    Its other hyperparameters are as right as its kind can be.

    Args:
        objective: What is observed.
        factor: What the reported variances are in units of the true ones.
    """

    objective: NoisyLandscape
    factor: float = 0.1

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        return with_data(self.template(), X, Y, self.variances(X))

    def template(self) -> SingleTaskGP:
        """The process that all hyperparameters but the noise are from, not to be changed."""
        return ReferenceGP(self.objective)()

    def variances(self, X: Tensor) -> Tensor:
        """The reported variances ``n x 1`` of outcomes at ``n x d`` points."""
        return self.factor * noise_deviation(self.objective, X).square()


def understated(function: str) -> Problem:
    """One function."""
    build = FUNCTIONS[function]
    made: Any = build()
    bounds = bounds_of(made)
    objective = NoisyLandscape(Landscape(build, bounds), misspecified.CASES["noise"])
    return Problem(
        name=function,
        build=objective,
        bounds=bounds,
        optimal_value=-float(made.optimal_value),
        initial_design=partial(sobol_design, bounds=bounds),
        num_initial=NUM_INITIAL[len(bounds)],
        num_evaluations=NUM_EVALUATIONS[len(bounds)],
        surrogate=ReportedErrors(objective),
    )


def problems() -> tuple[Problem, ...]:
    return tuple(map(understated, FUNCTIONS))
