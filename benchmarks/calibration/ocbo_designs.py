"""How initial points decide, and a hundred steps in ten dimensions: suite `ocbo_designs`.

Two studies of online calibrated Bayesian optimization (Deshpande, Marx and Kuleshov, 2024):

* Table 4, as far as it is of the initial design: Forrester's function from 3, 4, 7 and 10 uniform
  points, and from 4 points by Sobol's sequence and on a Latin hypercube. The paper does not name
  the acquisition function of these rows; its row of the linear kernel is the one that is repeated
  under expected improvement, which is taken for all.
* Appendix A.4: Alpine in ten dimensions over 100 steps, by expected improvement, from the 5 points
  of suite `calibration`.

Functions, Gaussian process, schedule of fits and search are those of suite `calibration`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from botorch.utils.sampling import manual_seed
from torch import Tensor

from benchmarks.calibration.methods import RECALIBRATION
from benchmarks.calibration.study_methods import study_method
from benchmarks.calibration.synthetic import Alpine1, Forrester, StudyProblem, study_problem
from benchmarks.framework.sequential import Bounds, Method, box, sobol_design

ALPINE = "alpine10_100"


def random_design(n: int, seed: int, *, bounds: Bounds) -> Tensor:
    """``n x d`` independent uniform points."""
    return _scaled(_uniform(n, seed, bounds), bounds)


def latin_design(n: int, seed: int, *, bounds: Bounds) -> Tensor:
    """``n x d`` points, in each coordinate one in every ``n``-th of the range, at random."""
    within = _uniform(n, seed, bounds)
    with manual_seed(seed + 1):
        order = torch.stack([torch.randperm(n) for _ in bounds], dim=-1)
    return _scaled((order + within) / n, bounds)


def _uniform(n: int, seed: int, bounds: Bounds) -> Tensor:
    with manual_seed(seed):
        return torch.rand(n, len(bounds), dtype=torch.double)


def _scaled(X: Tensor, bounds: Bounds) -> Tensor:
    lower, upper = box(bounds)
    return lower + (upper - lower) * X


# By their names, with the numbers of points.
DESIGNS: dict[str, tuple[Callable[..., Tensor], int]] = {
    **{f"random_{n}": (random_design, n) for n in (3, 4, 7, 10)},
    "sobol_4": (sobol_design, 4),
    "latin_4": (latin_design, 4),
}


def forrester_name(design: str) -> str:
    """The name of the problem with one of the `DESIGNS`."""
    return f"forrester_{design}"


def forrester(design: str) -> StudyProblem:
    """Forrester's function from one of the `DESIGNS`."""
    problem = study_problem("forrester", Forrester, "ei")
    made, num_initial = DESIGNS[design]
    return replace(
        problem,
        name=forrester_name(design),
        initial_design=partial(made, bounds=problem.bounds),
        num_initial=num_initial,
    )


def alpine() -> StudyProblem:
    """Alpine in ten dimensions, over a hundred steps."""
    return replace(study_problem("alpine10", Alpine1, "ei"), name=ALPINE, num_evaluations=100)


def problems() -> tuple[StudyProblem, ...]:
    return (*map(forrester, DESIGNS), alpine())


def methods() -> tuple[Method, ...]:
    return tuple(study_method(name, calibrator=made) for name, made in RECALIBRATION.items())
