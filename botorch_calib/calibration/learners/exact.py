"""Quantiles of the scores seen, as exact minimisers of the regularised pinball loss."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from botorch_calib._validation import check_positive, check_width
from botorch_calib.calibration.learners.base import QuantileLearner
from botorch_calib.calibration.learners.descent import gaussian_correlation
from botorch_calib.calibration.learners.pinball import pinball_minimizer

# Rows of the n x M x n table that are in memory at once when a history is replayed.
_CHUNK = 64


class ExactQuantileLearner(QuantileLearner):
    """Thresholds that minimise the pinball loss of all scores so far, drawn to the initial ones.

    The counterpart of `OnlineQuantileTracker` where the scores form a calibration set, such
    as leave-one-out residuals, rather than a sequence: OCBO eq. 11 without linearisation, solved
    by one sort (see `pinball_minimizer`). The order of the scores does not matter, thresholds
    of neighbouring levels never cross, and there is no bound against an adversary: the
    coverage is that of empirical quantiles. With a finite lengthscale the scores are weighted
    by ``exp(-|x_i - x|^2 / lengthscale^2)``, so where none are near, the model is left as it is.

    Args:
        levels: See `OnlineQuantileTracker`.
        step_size: A score moves a threshold by at most this; inverse weight of the
            initial thresholds.
        lengthscale: Lengthscale of the weights.
        initial: See `OnlineQuantileTracker`.
    """

    scores: Tensor
    _payload: ClassVar[str] = "scores"

    def __init__(
        self,
        levels: Tensor | Sequence[float],
        step_size: float,
        lengthscale: float = math.inf,
        initial: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(levels, initial, num_columns=1)
        self.step_size = check_positive("step_size", step_size)
        self.lengthscale = check_positive("lengthscale", lengthscale, allow_inf=True)

    @property
    def localized(self) -> bool:
        """Always, as each score is stored with its input."""
        return True

    def threshold(self, X: Tensor) -> Tensor:
        """Thresholds ``... x M`` at inputs ``... x d``, differentiable in them."""
        check_width(X, self.centers.shape[-1])
        if len(self.scores) == 0:
            return self.initial.expand(*X.shape[:-1], -1)
        if math.isinf(self.lengthscale):
            return self._minimizer(self.scores).expand(*X.shape[:-1], -1)
        weights = gaussian_correlation(X.to(self.centers), self.centers, self.lengthscale)
        return self._minimizer(self.scores, weights)

    def _minimizer(self, scores: Tensor, weights: Tensor | None = None) -> Tensor:
        return pinball_minimizer(
            scores.squeeze(-1), self.levels, self.initial, self.step_size, weights
        )

    def _learn(self, X: Tensor, u: Tensor) -> Tensor:
        start = self.num_updates
        self._store(X, torch.cat([self.scores, u.unsqueeze(-1)]))
        if not len(u):
            return self.initial.expand(0, -1)
        # Each observation met the minimiser over those before it.
        index = torch.arange(self.num_updates, device=u.device)
        rows = []
        for chunk in index[start:].split(_CHUNK):
            weights = (index < chunk.unsqueeze(-1)).to(u)
            if math.isfinite(self.lengthscale):
                kernel = gaussian_correlation(X[chunk - start], self.centers, self.lengthscale)
                weights = weights * kernel
            rows.append(self._minimizer(self.scores, weights))
        return torch.cat(rows)
