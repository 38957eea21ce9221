"""The tasks of suite `decisions_random`: small safe sets of functions that depend on the seed.

Named functions have peculiarities, such as the separate safe regions of Levy's function. Here the
outcome and the objective are draws of a Gaussian process with a Matern-5/2 kernel, with two, three
or five inputs in the unit cube. Each seed has its own draws, so that intervals over seeds are also
intervals over functions. The lengthscale is 0.25 sqrt(d), so that functions of all dimensions are
similarly rough.

Everything else is as in case ``quarter`` of `decisions_small_sets`: a quarter of the box is safe,
there are 4 initial points per dimension and 120 rounds, and hyperparameters are given and right,
except for a noise variance that is ten times too small.

* ``independent``: the objective is an independent draw.
* ``opposed``: the objective is the sum of the outcome and an independent draw, so that points with
  a large objective are mostly unsafe.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from botorch.test_functions.synthetic import SyntheticTestFunction
from torch import Tensor

from benchmarks.decisions import replicate as decisions
from benchmarks.decisions.faults_and_small_sets import SMALL_SETS
from benchmarks.decisions.replicate import DecisionMethod
from benchmarks.decisions.tasks import DecisionTask, Standardized
from benchmarks.framework.replicate import stream_seed
from benchmarks.framework.replicate_result import Result, replicate_config

DIMS, LENGTHSCALE, NUM_FEATURES = (2, 3, 5), 0.25, 512

# Numbers of random streams, which must not change, see `framework.replicate`.
LIMITED, OWN = 32, 33


class PriorDraw(SyntheticTestFunction):
    """A draw of a Gaussian process with a Matern-5/2 kernel, or a sum of several.

    Args:
        dim: Number of inputs, in the unit cube.
        seeds: The seeds of the draws, which are added.
    """

    _optimal_value = None

    def __init__(self, dim: int, seeds: tuple[int, ...]) -> None:
        self.dim, self.continuous_inds = dim, list(range(dim))
        self._bounds = [(0.0, 1.0)] * dim
        super().__init__(dtype=torch.double)
        draws = [self._features(seed) for seed in seeds]
        self.frequencies, self.phases, self.weights = (
            torch.cat(p) for p in zip(*draws, strict=True)
        )

    def _features(self, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Frequencies, phases and weights of random Fourier features (Rahimi and Recht, 2007).

        The spectral density of the Matern-5/2 kernel is Student's t with five degrees of freedom.
        """
        generator = torch.Generator().manual_seed(seed)
        normal = partial(torch.randn, generator=generator, dtype=torch.double)
        chi_squared = normal(NUM_FEATURES, 5).square().sum(dim=-1, keepdim=True)
        scale = LENGTHSCALE * math.sqrt(self.dim)
        frequencies = normal(NUM_FEATURES, self.dim) * (5.0 / chi_squared).sqrt() / scale
        phases = 2.0 * math.pi * torch.rand(NUM_FEATURES, generator=generator, dtype=torch.double)
        return frequencies, phases, normal(NUM_FEATURES) * math.sqrt(2.0 / NUM_FEATURES)

    def _evaluate_true(self, X: Tensor) -> Tensor:
        return (X @ self.frequencies.mT + self.phases).cos() @ self.weights


# Each replicate uses a function some hundred times.
prior_draw = lru_cache(maxsize=4)(PriorDraw)


@dataclass(frozen=True)
class RandomTask:
    """A task whose functions depend on the seed.

    Args:
        name: The name, unique within a suite.
        dim: Number of inputs.
        opposed: Whether the outcome is part of the objective.
    """

    name: str
    dim: int
    opposed: bool
    lengthscale: float = LENGTHSCALE
    num_features: int = NUM_FEATURES

    def drawn(self, seed: int) -> DecisionTask:
        """The task with the functions of a seed."""
        limited, own = (stream_seed(seed, stream, self.dim) for stream in (LIMITED, OWN))
        objective = (limited, own) if self.opposed else (own,)
        return SMALL_SETS["quarter"].task(
            self.name,
            Standardized(partial(prior_draw, self.dim, (limited,)), self.dim),
            Standardized(partial(prior_draw, self.dim, objective), self.dim),
        )


def replicate(task: RandomTask, method: DecisionMethod, seed: int) -> Result:
    """Run ``method`` on ``task``; the result is deterministic, except for wall times."""
    result = decisions.replicate(task.drawn(seed), method, seed)
    return replace(result, config=replicate_config(task, method))


RELATIONS = {"independent": False, "opposed": True}


def tasks() -> tuple[RandomTask, ...]:
    return tuple(
        RandomTask(f"d{dim}_{name}", dim, opposed)
        for name, opposed in RELATIONS.items()
        for dim in DIMS
    )
