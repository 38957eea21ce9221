"""`MixedSpace`: continuous and discrete parameters of a client, and the best certified point."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from botorch.acquisition import AcquisitionFunction, PosteriorMean
from botorch.exceptions.errors import InfeasibilityError
from botorch.models.model import Model
from torch import Tensor

from botorch_calib.asynchronous.designs import with_features
from botorch_calib.decisions import ChanceConstraint
from botorch_calib.decisions.chance_constrained_search import (
    LeastMargin,
    Place,
    best_certified,
    known_points,
)
from botorch_calib.optim.region import Region

# Points of a mixed space that are compared, and rounds in which the best of them is improved.
_POOL, _ROUNDS = 512, 3
# Share of its parameters that are changed at a time.
_CHANGED = 0.3
# The search for the continuous parameters of one of them.
_RESTARTS, _SAMPLES = 2, 128


@dataclass(frozen=True)
class MixedSpace:
    """Points of a place with bounds that a client can express.

    Columns in ``values`` have these alone, in increasing order; ``rounding`` moves points
    ``n x d`` to such ones. Values, of which there may be a million, are looked up, never listed.
    """

    place: Place
    values: Mapping[int, Sequence[float]] = field(default_factory=dict)
    rounding: Callable[[Tensor], Tensor] | None = None  # None: all points can be expressed

    @cached_property
    def discrete(self) -> set[int]:
        """Columns that are not continuous."""
        lower, upper = self.place.bounds  # type: ignore[misc]  # it has some
        between = lower + (upper - lower) * torch.linspace(0.13, 0.89, 5).to(lower).unsqueeze(-1)
        # Choices without an order are columns of weights, of which the largest wins.
        moved = ((self.rounded(between) - between).abs() > 1e-6 * (upper - lower)).any(dim=0)
        return {*self.values, *moved.nonzero().flatten().tolist()}

    def rounded(self, X: Tensor) -> Tensor:
        """Points ``n x d`` that are expressed by others."""
        return X if self.rounding is None else self.rounding(X)

    @torch.enable_grad()
    def best(self, acqf: AcquisitionFunction, margin: LeastMargin) -> tuple[Tensor, bool]:
        """The best certified point ``1 x d`` and True, else the most promising one and False.

        In a mixed space the best of many points is improved in turns: its continuous parameters by
        a search, and the discrete ones by comparison with all others.
        """
        fixed, width = self.place.fixed_features or {}, self.region.bounds.shape[-1]
        free = [column for column in range(width) if column not in {*self.discrete, *fixed}]
        if free and not self.discrete - {*fixed}:
            return best_certified(acqf, margin, self.place)
        pool = self.points(known_points(margin, self.region))
        best, certified = best_certified(acqf, margin, Place(None, pool))
        for _ in range(_ROUNDS):
            before = best
            mixed = torch.where(torch.rand_like(pool) < _CHANGED, pool, best)
            others = torch.cat([pool, mixed])
            if free:
                held = {**{i: float(best[0, i]) for i in self.discrete}, **fixed}
                rough = self.place._replace(num_restarts=_RESTARTS, raw_samples=_SAMPLES)
                climbed, _ = best_certified(acqf, margin, rough._replace(fixed_features=held))
                others = torch.cat([climbed, others])
                others[:, free] = climbed[:, free]
            choices = torch.cat([best, self._expressed(others)]).unique(dim=0)
            best, certified = best_certified(acqf, margin, Place(None, choices))
            if torch.equal(best, before):
                break
        return best, certified

    def choices(
        self, objective: Model, constraint: ChanceConstraint, confidence: float, maximize: bool
    ) -> Tensor:
        """Choices ``n x d`` for `recommend`, with the best safe point and the best hopeful one.

        A hopeful point is expected to be safe: it shows what stands in the way of better ones.
        """
        mean = PosteriorMean(objective, maximize=maximize)
        margins = [LeastMargin(constraint, level) for level in (confidence, 0.5)]
        best = [self.rounded(self.best(mean, margin)[0]) for margin in margins]
        return torch.cat([*best, self.points(known_points(margins[0], self.region))])

    def points(self, known: Tensor) -> Tensor:
        """Points ``n x d`` spread over the space, and the ``known`` ones ``m x 1 x d`` in it."""
        X = self.region.sample(_POOL)
        X = torch.cat([self._combined(X), X, self.region.placed(known)])
        pool = self._expressed(X.squeeze(-2))
        if not len(pool):
            raise InfeasibilityError("No point that was found meets the parameter constraints.")
        return pool.unique(dim=0)

    def _combined(self, X: Tensor) -> Tensor:
        """Points ``n x 1 x d`` with each combination of ``values``, or a random one if too many.

        The nearest values of points that are spread evenly are seldom those close to others.
        """
        X, fixed, place = X.clone(), self.place.fixed_features or {}, torch.arange(len(X))
        free = {column: values for column, values in self.values.items() if column not in fixed}
        is_complete = math.prod(map(len, free.values())) <= len(X)
        for column, values in free.items():
            chosen = place if is_complete else torch.randint(len(values), place.shape)
            of_points = [values[i] for i in (chosen % len(values)).tolist()]
            X[..., column] = X.new_tensor(of_points).unsqueeze(-1)
            place = place // len(values)
        return X

    def _expressed(self, X: Tensor) -> Tensor:
        """Points ``n x d`` with discrete parameters moved to the nearest values, where allowed."""
        X = X.clone()
        for column, values in self.values.items():
            X[:, column] = X.new_tensor([_nearest(values, x) for x in X[:, column].tolist()])
        X = self.rounded(X) if self.discrete - {*self.values} else X
        return X[self.region.allows(X.unsqueeze(-2))]

    @cached_property
    def region(self) -> Region:
        """The space, as if all of its parameters were continuous."""
        bounds, _, fixed, linear, equal, *_ = self.place
        assert bounds is not None
        return Region(with_features(bounds, fixed or {}), linear, equal)


def _nearest(values: Sequence[float], x: float) -> float:
    """The nearest one of increasing values."""
    place = bisect_left(values, x)
    return min(values[max(place - 1, 0) : place + 1], key=lambda value: abs(value - x))
