"""Problems with a misspecified Gaussian process: four functions in five cases.

The comparisons and seeds are in ``benchmarks/protocols/misspecified.md``.

* Functions: Ackley (2-d, on [-5, 5]^2), Branin, six-hump camel and Hartmann-3, maximised.
  Noise is in units of the standard deviation of the function over the box (of the warped function
  if there is a warp), which is computed from 4096 Sobol points.
* Cases:

  - ``lengthscale``: hyperparameters come from a GP fitted to 60 d other noisy points, but the
    lengthscale is five times too long. Gaussian noise with standard deviation 0.1.
  - ``noise``: hyperparameters come from such a GP, but the noise variance is ten times too
    small. Gaussian noise with standard deviation 0.5.
  - ``student_t``: Student's t noise with 2.5 degrees of freedom and scale 0.3.
  - ``heteroscedastic``: Gaussian noise whose standard deviation rises from 0.05 to 0.8 along the
    first coordinate.
  - ``nonstationary``: the function is rough in one corner and flat in the opposite corner.
    Gaussian noise with standard deviation 0.05.

  In the last three cases, hyperparameters are fitted at every fifth evaluation.
* 5 initial points (8 for Hartmann-3), scrambled Sobol, and 40 evaluations. Settings were tuned on
  seeds from 1000; the hypotheses come from a first run on seeds 0 to 29.
* All methods maximise log expected improvement over the largest posterior mean at the evaluated
  points, since the largest outcome is mostly noise here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from botorch.test_functions.base import BaseTestProblem
from botorch.test_functions.synthetic import Ackley, Branin, Hartmann, SixHumpCamel

from benchmarks.framework.landscapes import (
    GaussianNoise,
    Landscape,
    Noise,
    NoisyLandscape,
    ReferenceGP,
    StudentNoise,
    Warp,
)
from benchmarks.framework.sequential import Problem, bounds_of, sobol_design
from benchmarks.framework.surrogates import Fixed, Refitted, Surrogate

NUM_EVALUATIONS = 40
REFITTED = Refitted(every=5)


def ackley() -> BaseTestProblem:
    """Ackley in two dimensions, on a box smaller than usual."""
    return Ackley(dim=2, bounds=[(-5.0, 5.0)] * 2)


def branin() -> BaseTestProblem:
    """Branin."""
    return Branin()


def six_hump_camel() -> BaseTestProblem:
    """The six-hump camel function."""
    return SixHumpCamel()


def hartmann3() -> BaseTestProblem:
    """Hartmann in three dimensions."""
    return Hartmann(dim=3)


FUNCTIONS: dict[str, Callable[[], BaseTestProblem]] = {
    "ackley": ackley,
    "branin": branin,
    "six_hump_camel": six_hump_camel,
    "hartmann3": hartmann3,
}

CASES: dict[str, Noise] = {
    "lengthscale": GaussianNoise(0.1, 0.1),
    "noise": GaussianNoise(0.5, 0.5),
    "student_t": StudentNoise(2.5, 0.3),
    "heteroscedastic": GaussianNoise(0.05, 0.8),
    "nonstationary": GaussianNoise(0.05, 0.05),
}


def surrogate(case: str, objective: NoisyLandscape) -> Surrogate:
    """The Gaussian process that all methods use in one case."""
    if case == "lengthscale":
        return Fixed(ReferenceGP(objective), lengthscale_factor=5.0)
    if case == "noise":
        return Fixed(ReferenceGP(objective), noise_factor=0.1)
    return REFITTED


def misspecified(function: str, case: str) -> Problem:
    """One function in one case."""
    build = FUNCTIONS[function]
    made: Any = build()
    bounds = bounds_of(made)
    warp = Warp() if case == "nonstationary" else None
    objective = NoisyLandscape(Landscape(build, bounds, warp), CASES[case])
    return Problem(
        name=f"{function}_{case}",
        build=objective,
        bounds=bounds,
        optimal_value=-float(made.optimal_value),
        initial_design=partial(sobol_design, bounds=bounds),
        num_initial=5 if len(bounds) == 2 else 8,
        num_evaluations=NUM_EVALUATIONS,
        surrogate=surrogate(case, objective),
    )


def names_by_case() -> dict[str, tuple[str, ...]]:
    """The names of the problems of each case."""
    return {case: tuple(f"{function}_{case}" for function in FUNCTIONS) for case in CASES}


def problems() -> tuple[Problem, ...]:
    return tuple(misspecified(function, case) for case in CASES for function in FUNCTIONS)
