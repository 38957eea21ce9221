"""Space-filling designs: queries that are chosen without a model of the objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from botorch.exceptions.errors import InfeasibilityError
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_calib.asynchronous.failed_queries import Feasibility
from botorch_calib.models.matching_rows import ROUNDED, is_any_of
from botorch_calib.optim.random_seeds import derived_seed, random_stream
from botorch_calib.optim.region import LinearConstraints, Region

# Number of points of the sequence that are tried for a query in a box: the query is the first new
# point. After failures, the query is the safest of up to this many new points.
ALTERNATIVES = 8
# Points are compared with earlier queries in blocks of this size, to save memory. One block is
# usually enough.
MOST_COMPARED = 1024
# At least this many points are drawn at once under linear constraints.
LEAST_DRAWN = 128


@dataclass(frozen=True)
class Design:
    """A sequence of scrambled Sobol points in a box, or of given points in random order.

    With linear constraints, the points are spread over the feasible part of the box.
    """

    bounds: Tensor  # 2 x d
    seed: int  # seed of the scrambling or of the random order
    fixed: Mapping[int, float]  # values of fixed features, by column
    choices: Tensor | None  # given points, n x d, including fixed features; None for the box
    linear: LinearConstraints | None = None  # constraints on points of the box

    def new_point(
        self, count: int, asked: Tensor, feasibility: Feasibility | None
    ) -> Tensor | None:
        """Return a new point of shape ``d``, or None if no new point is found.

        A point is new if it is not among the queries ``asked``, ``n x d``. Without ``feasibility``
        (the model of failures) the result is the first new point from point number ``count`` of the
        sequence on or, with ``choices``, a random new choice. With ``feasibility`` the result is
        the `Feasibility.safest` of up to `ALTERNATIVES` new points. These are from a different
        sequence for each ``count``, so that the same points are not considered again.
        """
        if self.choices is None and feasibility is None:
            points = self.sample(ALTERNATIVES, count)
        else:
            num = ALTERNATIVES if self.choices is None else len(self.choices)
            points = replace(self, seed=derived_seed(self.seed, count)).sample(num)
        new = self._new_among(points, asked)
        if not len(new):
            return None
        return new[0] if feasibility is None else feasibility.safest(new)

    def next_point(self, count: int, asked: Tensor) -> Tensor:
        """Return point number ``count`` of the sequence, of shape ``d``.

        With ``choices``, return the first new point from this one on, unless no choice is new.
        """
        points = self.sample(1 if self.choices is None else len(self.choices), count)
        return torch.cat([self._new_among(points, asked), points])[0]

    def _new_among(self, points: Tensor, asked: Tensor) -> Tensor:
        """Return up to `ALTERNATIVES` of ``points``, ``n x d``, that are not in ``asked``.

        They are the first new points of the first block of `MOST_COMPARED` points that has any.
        """
        scale = self.bounds[1] - self.bounds[0]
        for rows in points.split(MOST_COMPARED):
            new = rows[~is_any_of(rows / scale, asked / scale, ROUNDED)][:ALTERNATIVES]
            if len(new):
                return new
        return points[:0]

    def sample(self, num: int, skip: int = 0) -> Tensor:
        """Return ``num`` points of the sequence, ``num x d``, after its first ``skip`` points.

        The sequence of given points repeats itself after the last point.
        """
        if self.choices is not None:
            generator = torch.Generator().manual_seed(self.seed)
            order = torch.randperm(len(self.choices), generator=generator)
            return self.choices[order[torch.arange(skip, skip + num) % len(order)]]
        if self.linear is not None:
            # Points that meet the constraints depend on the number drawn. The number is a power of
            # two, so that calls with different `skip` rarely get points of different sequences.
            drawn = max(LEAST_DRAWN, 1 << (num + skip - 1).bit_length())
            with random_stream(self.seed):
                points = Region(with_features(self.bounds, self.fixed), self.linear).sample(drawn)
            if not len(points):
                raise InfeasibilityError("No point within `bounds` meets the linear constraints.")
            return points[torch.arange(skip, skip + num) % len(points), 0]
        unit = SobolEngine(self.bounds.shape[-1], scramble=True, seed=self.seed).fast_forward(skip)
        points = self.bounds[0] + unit.draw(num, dtype=torch.double) * self.bounds.diff(dim=0)
        return with_features(points, self.fixed)


def with_features(points: Tensor, fixed: Mapping[int, float]) -> Tensor:
    """Return a copy of ``points``, ``... x d``, whose column ``i`` is ``fixed[i]``, if given."""
    points = points.clone()
    for column, value in fixed.items():
        points[..., column] = value
    return points
