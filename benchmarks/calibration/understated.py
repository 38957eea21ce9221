"""Problems of suite `understated_noise`: outcomes whose reported standard errors are too small.

The protocol is ``benchmarks/protocols/understated_noise.md``. There are six functions, maximised:
the four functions of suite `misspecified`, Levy in four dimensions and Hartmann in six. The noise
is Gaussian; its standard deviation is half the standard deviation of the function over the box. A
user passes a tenth of its variance as ``train_Yvar``, which BoTorch trusts: reported standard
errors often leave out variation from day to day. All other hyperparameters come from a Gaussian
process fitted to 60 d other noisy points, as in suite `misspecified`, so only the noise is wrong.
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

# Numbers of points by dimension.
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
    """Makes a Gaussian process that trusts reported variances of the outcomes.

    Its other hyperparameters are those of a process fitted to many points.

    Args:
        objective: The objective, with its noise.
        factor: The reported variances divided by the true variances.
    """

    objective: NoisyLandscape
    factor: float = 0.1

    def __call__(
        self, X: Tensor, Y: Tensor, bounds: Tensor, step: int, previous: SingleTaskGP | None
    ) -> SingleTaskGP:
        return with_data(self.template(), X, Y, self.variances(X))

    def template(self) -> SingleTaskGP:
        """The process with all hyperparameters except the noise. Do not modify it."""
        return ReferenceGP(self.objective)()

    def variances(self, X: Tensor) -> Tensor:
        """The reported variances ``n x 1`` of outcomes at ``n x d`` points."""
        return self.factor * noise_deviation(self.objective, X).square()


def understated(function: str) -> Problem:
    """The problem with one function."""
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
