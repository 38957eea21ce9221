"""`MixedSpace`: a search for certified points over continuous and discrete parameters."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InfeasibilityError
from botorch.models.model import Model
from torch import Tensor

from botorch_calib.decisions import ChanceConstraint, Recommendation, recommend
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place, best_certified
from botorch_calib.decisions.recommendation import posterior_mean
from botorch_calib.optim.feasible_search import known_points
from botorch_calib.optim.region import Region

# Number of points from which a search in a mixed space starts, and number of rounds that follow.
_POOL, _ROUNDS = 512, 3
# Probability with which a round replaces a column of the best point with a value of another point.
_CHANGED = 0.3
# Number of starts, and number of samples, of each search over the continuous parameters.
_RESTARTS, _SAMPLES = 2, 128


@dataclass(frozen=True)
class MixedSpace:
    """The points within given bounds that a client can represent, or all points in a list.

    A client is a framework such as Ax. ``place`` holds the bounds, ``2 x d``, or the list of
    points, and the linear constraints. A fixed column has equal bounds. ``values`` holds the
    allowed values of each discrete column, in increasing order. ``rounding`` moves points ``n x d``
    to points that the client can represent. A column may have a million values, so code must index
    the values, and not loop over them.
    """

    place: Place
    values: Mapping[int, Sequence[float]] = field(default_factory=dict)
    rounding: Callable[[Tensor], Tensor] | None = None  # None if all points can be represented

    @cached_property
    def fixed(self) -> dict[int, float]:
        """The values of the fixed columns, by the column's index."""
        lower, upper = self.region.bounds
        return {i: float(lower[i]) for i in (lower == upper).nonzero().flatten().tolist()}

    @cached_property
    def discrete(self) -> set[int]:
        """The columns that are not continuous."""
        lower, upper = self.region.bounds
        between = lower + (upper - lower) * torch.linspace(0.13, 0.89, 5).to(lower).unsqueeze(-1)
        # A column is discrete if rounding moves any of these points. A category is one-hot encoded
        # in a group of columns, and rounding sets the largest column to 1 and the others to 0.
        moved = ((self.rounded(between) - between).abs() > 1e-6 * (upper - lower)).any(dim=0)
        return {*self.values, *moved.nonzero().flatten().tolist()}

    @cached_property
    def free(self) -> list[int]:
        """The columns that are neither fixed nor discrete."""
        held = {*self.discrete, *self.fixed}
        return [i for i in range(self.region.bounds.shape[-1]) if i not in held]

    @property
    def is_mixed(self) -> bool:
        """Whether a column that is not fixed is discrete, or no column is free.

        The result is False if the points are listed.
        """
        is_listed = self.place.choices is not None
        return not is_listed and not (self.free and self.discrete <= self.fixed.keys())

    def rounded(self, X: Tensor) -> Tensor:
        """The points ``n x d`` that the client would run in place of ``X``."""
        return X if self.rounding is None else self.rounding(X)

    def best(self, acqf: AcquisitionFunction, margin: LeastMargin) -> tuple[Tensor, bool]:
        """Find the best certified point; return a point ``1 x d``, and whether it is certified.

        The best point has the largest ``acqf`` among points with a ``margin`` of at least 0. If no
        point is certified, the result is the most promising point. In a mixed space (`is_mixed`)
        the search starts from the best of many points. Each round searches over the continuous
        parameters, and compares the result with points that have other values of the discrete
        parameters.
        """
        if not self.is_mixed:
            best, certified = best_certified(acqf, margin, self.place)
            return self.rounded(best), certified
        pool = self.points(known_points(margin.certified.known, self.region))
        best, certified = best_certified(acqf, margin, Place(None, pool))
        for _ in range(_ROUNDS):
            before = best
            mixed = torch.where(torch.rand_like(pool) < _CHANGED, pool, best)
            others = torch.cat([pool, mixed])
            if self.free:
                held = {**{i: float(best[0, i]) for i in self.discrete}, **self.fixed}
                rough = self.place._replace(num_restarts=_RESTARTS, raw_samples=_SAMPLES)
                climbed, _ = best_certified(acqf, margin, rough._replace(fixed_features=held))
                others = torch.cat([climbed, others])
                others[:, self.free] = climbed[:, self.free]
            choices = torch.cat([best, self._expressed(others)]).unique(dim=0)
            best, certified = best_certified(acqf, margin, Place(None, choices))
            if torch.equal(best, before):
                break
        return self.rounded(best), certified

    def recommended(
        self,
        objective: Model,
        constraint: ChanceConstraint,
        confidence: float,
        maximize: bool,
        baseline: Tensor | None = None,
    ) -> Recommendation:
        """Return the `Recommendation` of a point, with arguments as in `recommend`.

        In a mixed space, or under parameter constraints, the point is chosen from a list. The list
        includes the best point that is safe with the given ``confidence``, and the best point that
        is safe with confidence 0.5. If the second point is better, `recommend` names the limits
        that exclude it.
        """
        place = self.place
        linear = place.inequality_constraints or place.equality_constraints
        if self.rounding is not None or self.is_mixed or linear:
            mean = posterior_mean(objective, maximize)
            margins = [LeastMargin(constraint, level) for level in (confidence, 0.5)]
            best = [self.best(mean, margin)[0] for margin in margins]
            known = known_points(margins[0].certified.known, self.region)
            place = Place(None, torch.cat([*best, self.points(known)]))
        searched = place.bounds, place.choices
        return recommend(
            objective, constraint, *searched, confidence, baseline, maximize, place.raw_samples
        )

    def points(self, known: Tensor) -> Tensor:
        """Return points ``n x d`` of the space: random points, and ``known`` points ``m x 1 x d``.

        The points are rounded and distinct. Points outside of the region are left out.
        """
        X = self.region.sample(_POOL)
        X = torch.cat([self._combined(X), X, self.region.placed(known)])
        pool = self._expressed(X.squeeze(-2))
        if not len(pool):
            raise InfeasibilityError("No sampled point meets the parameter constraints.")
        return pool.unique(dim=0)

    def _combined(self, X: Tensor) -> Tensor:
        """Set the discrete columns of points ``n x 1 x d`` to all combinations of ``values``.

        If there are more than ``n`` combinations, each column gets random values. Evenly spread
        points are not rounded to the nearest values, since this would seldom yield a value that is
        close to another value.
        """
        X, place = X.clone(), torch.arange(len(X))
        free = {i: values for i, values in self.values.items() if i not in self.fixed}
        is_complete = math.prod(map(len, free.values())) <= len(X)
        for column, values in free.items():
            chosen = place if is_complete else torch.randint(len(values), place.shape)
            of_points = [values[i] for i in (chosen % len(values)).tolist()]
            X[..., column] = X.new_tensor(of_points).unsqueeze(-1)
            place = place // len(values)
        return X

    def _expressed(self, X: Tensor) -> Tensor:
        """Round the discrete parameters of points ``n x d``; drop points outside of the region."""
        X = X.clone()
        for column, values in self.values.items():
            X[:, column] = X.new_tensor([_nearest(values, x) for x in X[:, column].tolist()])
        X = self.rounded(X) if self.discrete - {*self.values} else X
        return X[self.region.allows(X.unsqueeze(-2))]

    @cached_property
    def region(self) -> Region:
        """The space with all parameters treated as continuous."""
        bounds, _, _, linear, equal, *_ = self.place
        assert bounds is not None
        return Region(bounds, linear, equal)


def _nearest(values: Sequence[float], x: float) -> float:
    """Return the element of the increasing ``values`` that is closest to ``x``."""
    place = bisect_left(values, x)
    return min(values[max(place - 1, 0) : place + 1], key=lambda value: abs(value - x))
