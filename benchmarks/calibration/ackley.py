"""Ackley's function from one-sided initial points, with heteroscedastic noise and without."""

from __future__ import annotations

from functools import partial
from typing import Any

from botorch.test_functions.synthetic import Ackley
from torch import Tensor

from benchmarks.framework.sequential import Problem, botorch_oracle, sobol_design
from benchmarks.problems import one_sided_initial_design
from botorch_calib.test_functions import HeteroscedasticAckley

ACKLEY_BOX = ((-10.0, 10.0), (-10.0, 10.0))


def one_sided_design(n: int, seed: int, **options: Any) -> Tensor:
    """``n x d`` points, each on one side of the origin in all of its coordinates."""
    return one_sided_initial_design(n, seed=seed, **options)


def heteroscedastic_ackley(num_evaluations: int = 50) -> Problem:
    """Ackley with noise variance ``(|x| + 10) / 20``, from five one-sided points."""
    return Problem(
        name="heteroscedastic_ackley",
        build=partial(botorch_oracle, cls=HeteroscedasticAckley),
        bounds=ACKLEY_BOX,
        optimal_value=0.0,
        initial_design=one_sided_design,
        num_initial=5,
        num_evaluations=num_evaluations,
    )


def noise_free_ackley(num_evaluations: int = 50) -> Problem:
    """Ackley without noise, on the same box and from the same initial points."""
    return Problem(
        name="noise_free_ackley",
        build=partial(botorch_oracle, cls=Ackley, dim=2, bounds=list(ACKLEY_BOX), negate=True),
        bounds=ACKLEY_BOX,
        optimal_value=0.0,
        initial_design=one_sided_design,
        num_initial=5,
        num_evaluations=num_evaluations,
    )


def small_noisy_ackley(num_evaluations: int = 3) -> Problem:
    """A cheap problem that only checks the machinery."""
    bounds = ((-1.0, 1.0), (-1.0, 1.0))
    return Problem(
        name="small_noisy_ackley",
        build=partial(
            botorch_oracle, cls=Ackley, dim=2, bounds=list(bounds), negate=True, noise_std=0.1
        ),
        bounds=bounds,
        optimal_value=0.0,
        initial_design=partial(sobol_design, bounds=bounds),
        num_initial=3,
        num_evaluations=num_evaluations,
    )
