"""Queries that are spread over the box or the choices, whatever the values are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.quasirandom import SobolEngine

from botorch_calib.acquisition.random_seeds import derived_seed
from botorch_calib.asynchronous.feasibility import Feasibility
from botorch_calib.asynchronous.repeated_points import is_any_of

# Points among which the one that fails least is asked, where some have failed.
ALTERNATIVES = 8


@dataclass(frozen=True)
class Design:
    """Points of a scrambled Sobol sequence in a box, or a random order of given points.

    Args:
        bounds: The box, ``2 x d``.
        seed: Seed of the scrambling or of the order.
        fixed: Values of features that are given, by column.
        choices: Points, ``n x d``, that have these values; None for the box.
    """

    bounds: Tensor
    seed: int
    fixed: Mapping[int, float]
    choices: Tensor | None

    def point(self, count: int) -> Tensor:
        """Point ``count``, of length ``d``; choices begin again when all have been asked."""
        if self.choices is None:
            return self._sobol(self.seed, count, 1)[0]
        return self.choices[self._order(self.seed, len(self.choices))[count % len(self.choices)]]

    def new_point(
        self, count: int, asked: Tensor, feasibility: Feasibility | None
    ) -> Tensor | None:
        """Point ``count``, of length ``d``, not one of the choices that have been asked.

        If queries have failed, it is the one of several points that is the most likely to bring a
        value. These are of a sequence of their own for each ``count``, as those of one sequence
        would be met again.

        Args:
            count: The number of points of this design so far.
            asked: Queries so far, ``n x d``.
            feasibility: Where queries bring values; None if none have failed.

        Returns:
            The point; None if all choices have been asked.
        """
        num = 1 if feasibility is None else ALTERNATIVES
        own = derived_seed(self.seed, count)
        if self.choices is not None:
            points = self.choices[~is_any_of(self.choices, asked)]
            points = points[self._order(own, len(points))[:num]]
        elif feasibility is None:
            points = self._sobol(self.seed, count, num)
        else:
            points = self._sobol(own, 0, num)
        if not len(points):
            return None
        return points[0 if feasibility is None else feasibility.predict(points).argmax()]

    def _sobol(self, seed: int, skip: int, num: int) -> Tensor:
        unit = SobolEngine(self.bounds.shape[-1], scramble=True, seed=seed).fast_forward(skip)
        points = self.bounds[0] + unit.draw(num, dtype=torch.double) * self.bounds.diff(dim=0)
        for column, value in self.fixed.items():
            points[:, column] = value
        return points

    @staticmethod
    def _order(seed: int, num: int) -> Tensor:
        return torch.randperm(num, generator=torch.Generator().manual_seed(seed))
