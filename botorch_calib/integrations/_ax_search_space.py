"""`SearchedSpace`: where Ax lets a search choose, and the best certified point of it.

`OwnSearch` is the acquisition of Ax that is maximised there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from ax.core.search_space import SearchSpaceDigest
from ax.generators.torch.botorch_modular.acquisition import Acquisition
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InfeasibilityError, UnsupportedError
from torch import Tensor

from botorch_calib.decisions.chance_constrained_search import (
    LeastMargin,
    Place,
    best_certified,
    known_points,
)
from botorch_calib.optim.region import LinearConstraints, Region

# Points of a mixed space that are compared, and rounds in which the best of them is improved.
_POOL, _ROUNDS = 512, 3
# Share of its parameters that are changed at a time.
_CHANGED = 0.3
# The search for the continuous parameters of one of them.
_RESTARTS, _SAMPLES = 2, 128


@dataclass
class SearchedSpace:
    """The space of Ax's transformed parameters, as it is handed to an acquisition.

    Args:
        digest: Its description.
        like: A tensor in the precision and on the device of the models.
        linear: Linear inequalities.
        equal: Linear equations.
        fixed: Values of fixed columns.
        rounding: Moves points ``n x d`` to those that Ax can express, if there are others.
    """

    digest: SearchSpaceDigest
    like: Tensor
    linear: LinearConstraints | None = None
    equal: LinearConstraints | None = None
    fixed: dict[int, float] = field(default_factory=dict)
    rounding: Callable[[Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        self.bounds = self.like.new_tensor(self.digest.bounds).mT
        lower, upper = self.bounds
        between = lower + (upper - lower) * torch.linspace(0.13, 0.89, 5).to(lower).unsqueeze(-1)
        # Choices without an order are columns of weights, of which the largest wins.
        moved = ((self.rounded(between) - between).abs() > 1e-6 * (upper - lower)).any(dim=0)
        self.discrete = set(self.digest.discrete_choices) | set(moved.nonzero().flatten().tolist())

    def rounded(self, X: Tensor) -> Tensor:
        """Points ``n x d`` with values that Ax can express."""
        return X if self.rounding is None else self.rounding(X)

    @torch.enable_grad()
    def best(self, acqf: AcquisitionFunction, margin: LeastMargin) -> tuple[Tensor, bool]:
        """The best certified point ``1 x d`` and True, else the most promising one and False.

        In a mixed space the best of many points is improved in turns: its continuous parameters by
        a search, and the discrete ones by comparison with those of all others.
        """
        free = [i for i in range(self.bounds.shape[-1]) if i not in {*self.discrete, *self.fixed}]
        if not self.discrete - set(self.fixed) and free:
            return best_certified(acqf, margin, self._place(self.fixed))
        pool = self.points(margin)
        best, certified = best_certified(acqf, margin, Place(None, pool))
        for _ in range(_ROUNDS):
            before = best
            mixed = torch.where(torch.rand_like(pool) < _CHANGED, pool, best)
            others = torch.cat([pool, mixed])
            if free:
                settings = {i: float(best[0, i]) for i in self.discrete}
                place = self._place({**settings, **self.fixed}, _RESTARTS, _SAMPLES)
                climbed, _ = best_certified(acqf, margin, place)
                others = torch.cat([climbed, others])
                others[:, free] = climbed[:, free]
            choices = torch.cat([best, self._allowed(self._expressed(others))]).unique(dim=0)
            best, certified = best_certified(acqf, margin, Place(None, choices))
            if torch.equal(best, before):
                break
        return best, certified

    def points(self, margin: LeastMargin | None = None) -> Tensor:
        """Points ``n x d`` spread over the space, and known ones in it, to the constraints if any.

        Without any, ``like`` holds the known ones.
        """
        if margin is None:
            known = self.region.placed(self.like.unsqueeze(-2))
        else:
            known = known_points(margin, self.region)
        X = torch.cat([self.region.sample(_POOL), known])
        pool = self._allowed(self._expressed(X.squeeze(-2)))
        if not len(pool):
            raise InfeasibilityError("No point that was found meets the parameter constraints.")
        return pool.unique(dim=0)

    def _expressed(self, X: Tensor) -> Tensor:
        """Points ``n x d`` moved to the nearest values of the discrete parameters."""
        X = X.clone()
        for column, values in self.digest.discrete_choices.items():
            choices = X.new_tensor(values)
            nearest = (X[:, column].unsqueeze(-1) - choices).abs().argmin(dim=-1)
            X[:, column] = choices[nearest]
        return self.rounded(X) if self.discrete - set(self.digest.discrete_choices) else X

    def _allowed(self, X: Tensor) -> Tensor:
        return X[self.region.allows(X.unsqueeze(-2))]

    @property
    def region(self) -> Region:
        """The space, as if all of its parameters were continuous."""
        bounds = self.bounds.clone()
        for column, value in self.fixed.items():
            bounds[:, column] = value
        return Region(bounds, self.linear, self.equal)

    def _place(
        self, fixed: dict[int, float], num_restarts: int = 4, raw_samples: int = 512
    ) -> Place:
        linear = (self.linear, self.equal)
        return Place(self.bounds, None, fixed, *linear, num_restarts, raw_samples)


class OwnSearch(Acquisition):
    """An acquisition of Ax with a search of its own, in a `SearchedSpace`."""

    def optimize(
        self,
        n: int,
        search_space_digest: SearchSpaceDigest,
        inequality_constraints: LinearConstraints | None = None,
        equality_constraints: LinearConstraints | None = None,
        fixed_features: dict[int, float] | None = None,
        rounding_func: Callable[[Tensor], Tensor] | None = None,
        optimizer_options: dict[str, Any] | None = None,
        candidate_set: Tensor | None = None,
        sampling_strategy: Any = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ax's, of a search that leaves to `_chosen` which options it takes."""
        if candidate_set is not None or sampling_strategy is not None:
            raise UnsupportedError(f"{type(self).__name__} does not choose among given candidates.")
        space = SearchedSpace(
            search_space_digest,
            self.surrogate.Xs[0],
            inequality_constraints,
            equality_constraints,
            fixed_features or {},
            rounding_func,
        )
        self.optimizer_options = dict(optimizer_options or {})
        points, values = self._chosen(n, space)
        return points, values, torch.ones(len(points), dtype=self.dtype)

    def _chosen(self, n: int, space: SearchedSpace) -> tuple[Tensor, Tensor]:
        """Points ``n x d`` and their values."""
        raise NotImplementedError
