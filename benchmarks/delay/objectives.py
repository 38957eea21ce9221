"""The objectives of suite `delay`, all maximised.

They come from the paper on Bayesian optimization under stochastic delayed feedback (Verma, Dai and
Low, 2022, section 6 and appendix C). Where training is expensive, the domain is a grid whose values
are computed once, see `delay.value_tables`.

==============  =========================================================  ==============
objective       decision variables                                         domain
==============  =========================================================  ==============
`gp_sample`     position                                                   1000 points
`svm`           C, gamma                                                   continuous
`logistic`      batch size, log10 learning rate, log10 decay               8 x 8 x 8
`cnn`           batch size, log10 learning rate, log10 decay               8 x 8 x 8
==============  =========================================================  ==============

Outcomes are accuracies or scaled to [0, 1], so 0 is a lower bound, which replaces a value that has
not arrived. Only `gp_sample` has noise, so its outcomes may be slightly negative.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from benchmarks.delay.svm import SVM_BOUNDS, svm_evaluator
from benchmarks.delay.trained_models import CnnTask, LogisticTask, TrainingTask
from benchmarks.delay.value_tables import TableEvaluator, table_evaluator
from benchmarks.framework.replicate import stream_seed
from benchmarks.framework.sequential import Bounds

# Number of a random stream, which must not change, see `framework.replicate`.
FUNCTION = 3

# Added to the diagonal of the covariance for its factorisation; negligible compared with the noise.
JITTER = 1e-9


class Evaluator(Protocol):
    """An objective. Points are vectors of length ``d``."""

    @property
    def choices(self) -> Tensor | None:
        """All points, ``n x d``, if the domain is discrete."""

    @property
    def optimal_value(self) -> float:
        """The largest noise-free value."""

    def observe(self, x: Tensor, rng: np.random.Generator) -> float:
        """The outcome at ``x``, with noise drawn from ``rng``."""

    def truth(self, x: Tensor) -> float:
        """The noise-free value at ``x``."""


@dataclass(frozen=True)
class DelayedObjective:
    """An objective to be maximised under delays.

    Args:
        name: The name, which is part of the names of tasks.
        build: Maps a seed to the evaluator. The first call in a fresh checkout may compute a
            table, which takes up to a minute or two.
        bounds: ``(lower, upper)`` of each decision variable, in raw units.
        censor_value: A known lower bound of the noise-free outcome.
    """

    name: str
    build: Callable[[int], Evaluator]
    bounds: Bounds
    censor_value: float


@functools.lru_cache(maxsize=4)
def covariance_factor(num_points: int, lengthscale: float) -> Tensor:
    """Cholesky factor of ``exp(-(s - t)^2 / (2 lengthscale^2))`` on a grid of [0, 1]."""
    grid = torch.linspace(0.0, 1.0, num_points, dtype=torch.double)
    distances = (grid.unsqueeze(-1) - grid) / lengthscale
    covariance = (-0.5 * distances.square()).exp()
    return torch.linalg.cholesky(covariance + JITTER * torch.eye(num_points, dtype=torch.double))


def gp_sample_evaluator(
    seed: int, *, num_points: int = 1000, lengthscale: float = 0.02, noise_std: float = 0.01
) -> TableEvaluator:
    """A draw of a Gaussian process on a grid, scaled to [0, 1]; it depends on the seed.

    Args:
        seed: The seed of the function.
        num_points: The number of evenly spaced points of [0, 1].
        lengthscale: Lengthscale of the squared exponential kernel, whose variance is 1.
        noise_std: Standard deviation of the observation noise, after scaling. The paper does
            not state its value.
    """
    generator = torch.Generator().manual_seed(stream_seed(seed, FUNCTION))
    normal = torch.randn(num_points, generator=generator, dtype=torch.double)
    values = covariance_factor(num_points, lengthscale) @ normal
    values = (values - values.min()) / (values.max() - values.min())
    grid = torch.linspace(0.0, 1.0, num_points, dtype=torch.double).unsqueeze(-1)
    return TableEvaluator(grid, values, noise_std)


def gp_sample() -> DelayedObjective:
    """A function with about fourteen local maxima."""
    return DelayedObjective("gp_sample", gp_sample_evaluator, ((0.0, 1.0),), 0.0)


def svm() -> DelayedObjective:
    """A support vector machine on the Pima diabetes data, see `benchmarks.delay.svm`."""
    return DelayedObjective("svm", svm_evaluator, SVM_BOUNDS, 0.0)


def logistic() -> DelayedObjective:
    """Logistic regression on breast cancer, see `benchmarks.delay.trained_models`."""
    return _training(LogisticTask())


def cnn() -> DelayedObjective:
    """A convolutional network on handwritten digits, see `benchmarks.delay.trained_models`."""
    return _training(CnnTask())


def _training(task: TrainingTask) -> DelayedObjective:
    axes = (task.batch_sizes, task.log_rates, task.log_decays)
    bounds = tuple((float(min(axis)), float(max(axis))) for axis in axes)
    return DelayedObjective(task.name, partial(table_evaluator, task=task), bounds, 0.0)
