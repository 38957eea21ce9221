"""`OwnSearch`: an acquisition of Ax with a search of its own, in a `MixedSpace`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from ax.core.search_space import SearchSpaceDigest
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

from botorch_calib.decisions.chance_constrained_search import Place
from botorch_calib.integrations._ax_acquisition import PendingAtEdges
from botorch_calib.integrations._mixed_spaces import MixedSpace
from botorch_calib.optim.region import LinearConstraints


class OwnSearch(PendingAtEdges):
    """An acquisition of Ax that is maximised by `_chosen`."""

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
        self.optimizer_options = dict(optimizer_options or {})
        bounds = self.surrogate.Xs[0].new_tensor(search_space_digest.bounds).mT
        linear = (inequality_constraints, equality_constraints)
        place = Place(bounds, None, fixed_features or {}, *linear)
        choices = {i: sorted(each) for i, each in search_space_digest.discrete_choices.items()}
        space = MixedSpace(place, choices, rounding_func)
        points, values = self._chosen(n, space)
        return points, values, torch.ones(len(points), dtype=self.dtype)

    def _chosen(self, n: int, space: MixedSpace) -> tuple[Tensor, Tensor]:
        """Points ``n x d`` and their values."""
        raise NotImplementedError
