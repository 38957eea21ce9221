r"""Quantiles of the next outcome, as any model states them.

The quantile with the normal score ``s`` is ``F_x^{-1}(Phi(s))``, ``F_x`` being the predictive
distribution of an observation at ``x``: ``mean + s deviation`` for a Gaussian process. Pending
points do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from botorch_calib.models.predict import predict
from botorch_calib.models.requirements import check_one_value_each
from botorch_calib.posteriors.prediction import Spread

# Levels closer to 0 and 1 are the same numbers in double precision.
_FARTHEST = 37.0
#: Probabilities closer to 0 and 1 than these have no finite normal score in double precision.
LEAST, MOST = 1e-300, 1.0 - 2.0**-53


class OutcomeQuantiles:
    """Quantiles and moments of an outcome at points ``b x 1 x d``; results are ``b``.

    If the distribution is not Gaussian, the median stands for the mean, and half of the distance
    between the quantiles ``Phi(1)`` and ``Phi(-1)`` for the deviation.
    """

    def __init__(self, model: Any, X: Tensor) -> None:
        self._stated = predict(model, X, observed=True, objective=False)
        check_one_value_each(self._stated.shape[-2], X, "A quantile of an outcome")
        self._lead = X.dim() - 2

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the points."""
        return self._stated.dtype

    @cached_property
    def _spread(self) -> Spread:
        return self._stated.spread()

    def _flat(self, values: Tensor) -> Tensor:
        return values.squeeze(-1).squeeze(-1).to(self.dtype)

    @property
    def mean(self) -> Tensor:
        """Mean of the outcome."""
        return self._flat(self._spread.center)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of the outcome."""
        return self._flat(self._spread.deviation)

    @property
    def objective_deviation(self) -> Tensor:
        """Standard deviation of the noise-free value: what more data would lower."""
        return self._flat(self._spread.of_objective)

    @property
    def noise_deviation(self) -> Tensor:
        """Standard deviation of the noise."""
        return self._flat(self._spread.of_noise)

    def quantile(self, score: float | Tensor) -> Tensor:
        """The quantile with a normal score: a number, or a tensor that broadcasts against ``b``."""
        z = torch.as_tensor(score, dtype=torch.double, device=self._stated.device)
        if not self._stated.is_gaussian:
            z = z.clamp(-_FARTHEST, _FARTHEST)
        return self._flat(self._stated.at_score(z[..., None, None]))

    def scores(self, values: Sequence[float]) -> Tensor:
        """Normal scores of numbers, one row for each of them."""
        numbers = self._stated.target_mean.new_tensor(list(values))
        return self.score(numbers.view(-1, *[1] * self._lead))

    def score(self, value: Tensor) -> Tensor:
        """Normal scores ``Phi^{-1}(F(y))`` of values that broadcast against ``b``."""
        return self._stated.score(value[..., None, None]).squeeze(-1).squeeze(-1)
