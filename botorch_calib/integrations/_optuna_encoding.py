"""A search space of Optuna, as the unit cube of its encoding."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import torch
from botorch.utils.sampling import draw_sobol_samples
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from torch import Tensor

from botorch_calib.models.matching_rows import ROUNDED, is_any_of

# The largest number of points of a space without continuous parameters that is searched as it is.
MOST_POINTS = 2048


class SearchSpace:
    """Parameters of Optuna, by name, as points of the unit cube; categories are one-hot."""

    def __init__(self, distributions: dict[str, BaseDistribution]) -> None:
        self.distributions = distributions
        self._transform = _SearchSpaceTransform(distributions, transform_0_1=True)

    @property
    def dim(self) -> int:
        """Number of columns of the encoding."""
        return len(self._transform.bounds)

    def holds(self, parameters: Mapping[str, Any]) -> bool:
        """Whether there is a value of each parameter."""
        return self.distributions.keys() <= parameters.keys()

    def encoded(self, points: Iterable[Mapping[str, Any]]) -> Tensor:
        """Points ``n x d`` of these parameters."""
        rows = [
            self._transform.transform({name: values[name] for name in self.distributions})
            for values in points
        ]
        return torch.from_numpy(np.array(rows))

    def parameters(self, point: Tensor) -> dict[str, Any]:
        """Parameters of a point ``d``, rounded where they are no continuous ones."""
        return dict(self._transform.untransform(point.clamp(0.0, 1.0).numpy()))

    def rounded(self, points: Tensor) -> Tensor:
        """Points ``n x d`` that Optuna makes of others."""
        return self.encoded(map(self.parameters, points))

    def fixed(self, parameters: Mapping[str, Any]) -> dict[int, float]:
        """Values by column of the parameters that are given."""
        given = {name: parameters[name] for name in self.distributions if name in parameters}
        others = self.parameters(torch.full((self.dim,), 0.5, dtype=torch.double))
        (point,) = self.encoded([others | given])
        encoded = zip(self.distributions, self._transform.column_to_encoded_columns, strict=True)
        columns = [int(column) for name, own in encoded if name in given for column in own]
        return {column: point[column].item() for column in columns}

    @property
    def is_rounded(self) -> bool:
        """Whether there are parameters that are integers, categories or have steps."""
        several = self.distributions.values()
        return any(not isinstance(one, FloatDistribution) or one.step for one in several)

    def points(self) -> Tensor | None:
        """All points ``n x d``; None if a parameter is continuous, or they are many.

        The rounding of an acquisition function's maximum may always be the same one of them.
        """
        values = [_values(distribution) for distribution in self.distributions.values()]
        if not 0 < math.prod(map(len, values)) <= MOST_POINTS:
            return None
        return self.encoded(
            dict(zip(self.distributions, each, strict=True)) for each in product(*values)
        )

    def expressible(self, X: Tensor, num: int = MOST_POINTS) -> Tensor | None:
        """Points ``n x d``: all, or of many the known ones ``X`` and some; None if continuous."""
        points = self.points()
        if points is not None or not self.is_rounded:
            return None if points is None else points.to(X)
        sample = draw_sobol_samples(unit_cube(X.cpu()), n=num, q=1, seed=0).squeeze(-2)
        return torch.cat([X, self.rounded(sample).to(X)])


def unit_cube(X: Tensor) -> Tensor:
    """Its bounds, ``2 x d``, for inputs ``n x d``."""
    return torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])


def without(points: Tensor, excluded: Sequence[Tensor]) -> Tensor | None:
    """The points ``n x d`` that are not excluded; None if none is left."""
    if not excluded:
        return points
    is_free = ~is_any_of(points, torch.stack(list(excluded)), ROUNDED)
    return points[is_free] if bool(is_free.any()) else None


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    """The values of a parameter, none if they are continuous or many."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    if distribution.step is None:
        return ()
    # Optuna sees to it that the greatest value is a whole number of steps above the least one.
    last = round((distribution.high - distribution.low) / distribution.step)
    if last >= MOST_POINTS:
        return ()
    return [distribution.low + i * distribution.step for i in range(last + 1)]
