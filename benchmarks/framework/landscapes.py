"""Test functions, and the noise, warps and reference models that suites combine with them.

All classes are frozen dataclasses. They are hashable, so that expensive quantities are computed
once in each process, and the configuration of a result describes them in full.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Protocol

import torch
from botorch.models import SingleTaskGP
from botorch.test_functions.base import BaseTestProblem
from botorch.utils.probability.utils import ndtr
from botorch.utils.sampling import draw_sobol_samples, manual_seed
from scipy import stats
from scipy.optimize import brentq
from torch import Tensor

from benchmarks.framework.sequential import Bounds, Oracle, box
from benchmarks.framework.surrogates import fit_gp


@dataclass(frozen=True)
class Warp:
    """Kumaraswamy's distribution function ``1 - (1 - x^a)^b``, applied to each coordinate.

    It is a bijection of the unit cube, so a function composed with it keeps its maximum. With the
    defaults, its slope falls from infinity at the lower corner to 0 at the upper corner. The
    composed function is therefore rough near the lower corner and flat near the upper corner.
    """

    a: float = 0.5
    b: float = 1.5

    def __call__(self, U: Tensor) -> Tensor:
        return 1.0 - (1.0 - U.clamp(0.0, 1.0) ** self.a) ** self.b


class Surface(Protocol):
    """A noise-free objective on a box, which must be hashable, such as a `Landscape`."""

    @property
    def bounds(self) -> Bounds:
        """The box."""

    def __call__(self, X: Tensor) -> Tensor:
        """Values ``n x 1`` at ``n x d`` points."""

    def spread(self) -> float:
        """Standard deviation of the values over the box."""


@dataclass(frozen=True)
class Landscape:
    """A noise-free objective to be maximised, which maps ``n x d`` points to ``n x 1`` values.

    Args:
        function: Makes a BoTorch test function that is minimised; it is negated.
        bounds: The box.
        warp: A warp of the points, scaled to the unit cube (default: none).
    """

    function: Callable[[], BaseTestProblem]
    bounds: Bounds
    warp: Warp | None = None

    def __call__(self, X: Tensor) -> Tensor:
        if self.warp is not None:
            lower, upper = box(self.bounds)
            X = lower + (upper - lower) * self.warp((X - lower) / (upper - lower))
        value: Tensor = self.function().evaluate_true(X)
        return -value.unsqueeze(-1)

    def spread(self) -> float:
        return _spread(self)


@cache
def _spread(landscape: Landscape) -> float:
    X = draw_sobol_samples(box(landscape.bounds), n=4096, q=1, seed=0).squeeze(-2)
    return float(landscape(X).std())


class Noise(Protocol):
    """Noise in units of the objective's spread, from torch's global random state."""

    def __call__(self, U: Tensor) -> Tensor:
        """Noise ``n x 1`` at ``n x d`` points of the unit cube."""

    def exceedance(self, U: Tensor, room: Tensor) -> Tensor:
        """Probabilities ``n x 1`` that the noise at each point is above ``room``, ``n x 1``."""

    def quantile(self, U: Tensor, level: float) -> Tensor:
        """The ``level``-quantile of the noise at each point; broadcasts to ``n x 1``."""


@dataclass(frozen=True)
class GaussianNoise:
    """Gaussian noise with a deviation from ``first`` to ``last``, linear in coordinate 0."""

    first: float
    last: float

    def deviation(self, U: Tensor) -> Tensor:
        """Standard deviations ``n x 1`` at ``n x d`` points of the unit cube."""
        return self.first + (self.last - self.first) * U[:, :1]

    def __call__(self, U: Tensor) -> Tensor:
        return self.deviation(U) * torch.randn_like(U[:, :1])

    def exceedance(self, U: Tensor, room: Tensor) -> Tensor:
        return ndtr(-room / self.deviation(U))

    def quantile(self, U: Tensor, level: float) -> Tensor:
        return NormalDist().inv_cdf(level) * self.deviation(U)


@dataclass(frozen=True)
class StudentNoise:
    """Noise with Student's t distribution, times ``scale``."""

    degrees_of_freedom: float
    scale: float

    def __call__(self, U: Tensor) -> Tensor:
        distribution = torch.distributions.StudentT(U.new_tensor(self.degrees_of_freedom))
        return self.scale * distribution.sample(torch.Size([len(U), 1]))

    def exceedance(self, U: Tensor, room: Tensor) -> Tensor:
        return room.new_tensor(stats.t.sf(room / self.scale, self.degrees_of_freedom))

    def quantile(self, U: Tensor, level: float) -> Tensor:
        return U.new_tensor(self.scale * stats.t.ppf(level, self.degrees_of_freedom))


@dataclass(frozen=True)
class OutlierNoise:
    """A mixture of two Gaussian distributions of mean zero, one of them for outliers.

    Args:
        deviation: Standard deviation of noise that is not an outlier.
        outlying: Standard deviation of outliers.
        share: Probability of an outlier.
    """

    deviation: float
    outlying: float
    share: float

    def __call__(self, U: Tensor) -> Tensor:
        outlies = torch.rand_like(U[:, :1]) < self.share
        return torch.where(outlies, self.outlying, self.deviation) * torch.randn_like(U[:, :1])

    def exceedance(self, U: Tensor, room: Tensor) -> Tensor:
        most, others = ndtr(-room / self.deviation), ndtr(-room / self.outlying)
        return (1.0 - self.share) * most + self.share * others

    def quantile(self, U: Tensor, level: float) -> Tensor:
        def excess(value: float) -> float:
            room = torch.tensor(value, dtype=torch.double)
            return float(self.exceedance(U, room)) - (1.0 - level)

        # The quantile lies between the quantiles of the two distributions.
        ends = (NormalDist().inv_cdf(level) * s for s in (self.deviation, self.outlying))
        return U.new_tensor(brentq(excess, *ends, xtol=1e-14))


@dataclass(frozen=True)
class NoisyLandscape:
    """Makes the oracle of a landscape with noise, which does not depend on the seed."""

    landscape: Surface
    noise: Noise

    def __call__(self, seed: int) -> Oracle:
        return Oracle(self.observe, self.landscape)

    def observe(self, X: Tensor) -> Tensor:
        lower, upper = box(self.landscape.bounds)
        noise = self.noise((X - lower) / (upper - lower))
        return self.landscape(X) + self.landscape.spread() * noise


def noise_deviation(objective: NoisyLandscape, X: Tensor) -> Tensor:
    """Standard deviations ``n x 1`` of the noise of outcomes at ``n x d`` points.

    Raises:
        TypeError: If the noise is not Gaussian.
    """
    if not isinstance(objective.noise, GaussianNoise):
        raise TypeError(f"The noise must be Gaussian, got {objective.noise!r}.")
    lower, upper = box(objective.landscape.bounds)
    return objective.landscape.spread() * objective.noise.deviation((X - lower) / (upper - lower))


@dataclass(frozen=True)
class ReferenceGP:
    """Makes a Gaussian process fitted to many noisy Sobol points, as a reference.

    Args:
        objective: The objective, with noise, to which it is fitted.
        points_per_dimension: Number of points divided by the dimension.
    """

    objective: NoisyLandscape
    points_per_dimension: int = 60

    def __call__(self) -> SingleTaskGP:
        return _reference_gp(self)


@cache
def _reference_gp(reference: ReferenceGP) -> SingleTaskGP:
    bounds = box(reference.objective.landscape.bounds)
    num_points = reference.points_per_dimension * bounds.shape[-1]
    X = draw_sobol_samples(bounds, n=num_points, q=1, seed=1).squeeze(-2)
    with manual_seed(1):
        return fit_gp(X, reference.objective.observe(X), bounds)
