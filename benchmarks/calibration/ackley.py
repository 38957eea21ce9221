"""Ackley's function with noise that grows away from the optimum, and a small problem for tests."""

from __future__ import annotations

from functools import partial

import torch
from botorch.test_functions.synthetic import Ackley
from torch import Tensor

from benchmarks.framework.sequential import Problem, botorch_oracle, sobol_design
from botorch_calib.test_functions import HeteroscedasticAckley

ACKLEY_BOX = ((-10.0, 10.0), (-10.0, 10.0))


def one_sided_design(n: int, seed: int) -> Tensor:
    """``n x 2`` points, uniform in [-10, -2]^2 or [2, 10]^2, far from the optimum."""
    generator = torch.Generator().manual_seed(seed)
    magnitude = 2.0 + 8.0 * torch.rand(n, 2, generator=generator, dtype=torch.double)
    right = torch.rand(n, 1, generator=generator, dtype=torch.double) < 0.5
    return torch.where(right, magnitude, -magnitude)


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
