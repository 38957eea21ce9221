"""Queries that do not depend on observed values: Sobol points or random choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from botorch.exceptions.errors import InfeasibilityError
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_calib.asynchronous.failed_queries import Feasibility
from botorch_calib.models.matching_rows import ROUNDED, is_any_of
from botorch_calib.optim.random_seeds import derived_seed, random_stream
from botorch_calib.optim.region import LinearConstraints, Region

# Maximum number of candidates for one query; after failures, the safest candidate is chosen.
ALTERNATIVES = 8
# Choices are compared with earlier queries in blocks of this size. One block is usually enough.
MOST_COMPARED = 1024
# Minimum number of points per draw under linear constraints.
LEAST_DRAWN = 128


@dataclass(frozen=True)
class Design:
    """A sequence of scrambled Sobol points in a box, or of given points in random order."""

    bounds: Tensor  # 2 x d
    seed: int  # seed of the scrambling or of the random order
    fixed: Mapping[int, float]  # values of fixed features, by column
    choices: Tensor | None  # given points, n x d, including fixed features; None for the box
    linear: LinearConstraints | None = None  # constraints on points of the box

    def new_point(
        self, count: int, asked: Tensor, feasibility: Feasibility | None
    ) -> Tensor | None:
        """Return a point of shape ``d`` that is not in ``asked``, ``n x d``; None if none is found.

        In a box it is point number ``count`` of the sequence, or the next new point. With
        ``choices`` it is a random new choice. With ``feasibility`` it is the `safest` of several
        new points, which come from a different sequence for each ``count``, to avoid repetitions.
        """
        if self.choices is None and feasibility is None:
            points = self.sample(ALTERNATIVES, count)
        else:
            num = ALTERNATIVES if self.choices is None else len(self.choices)
            points = replace(self, seed=derived_seed(self.seed, count)).sample(num)
        scale = self.bounds[1] - self.bounds[0]
        for rows in points.split(MOST_COMPARED):
            new = rows[~is_any_of(rows / scale, asked / scale, ROUNDED)][:ALTERNATIVES]
            if len(new):
                return new[0] if feasibility is None else feasibility.safest(new)
        return None

    def sample(self, num: int, skip: int = 0) -> Tensor:
        """Return points ``num x d`` after the first ``skip``; given points repeat in order."""
        if self.choices is not None:
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(len(self.choices), generator=generator)
            return self.choices[order[torch.arange(skip, skip + num) % len(order)]]
        if self.linear is not None:
            # The points depend on the number drawn: a power of two, so that they rarely change.
            drawn = max(LEAST_DRAWN, 1 << (num + skip - 1).bit_length())
            with random_stream(self.seed):
                points = Region(with_features(self.bounds, self.fixed), self.linear).sample(drawn)
            if not len(points):
                raise InfeasibilityError("No point within `bounds` meets the linear constraints.")
            return points[torch.arange(skip, skip + num) % len(points), 0]
        points = draw_sobol_samples(self.bounds, n=skip + num, q=1, seed=self.seed)[skip:, 0]
        return with_features(points, self.fixed)


def with_features(points: Tensor, fixed: Mapping[int, float]) -> Tensor:
    """Return a copy of points ``... x d`` in which the columns in ``fixed`` have its values."""
    points = points.clone()
    for column, value in fixed.items():
        points[..., column] = value
    return points
