"""`TransformedPredictor`: Gaussian predictions in the space of the targets, mapped to outcomes."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from botorch_calib.models.cholesky_factor import in_space_of_targets
from botorch_calib.models.inspection import with_task_feature
from botorch_calib.models.outcome_transforms import InverseTransform, targets_of
from botorch_calib.models.predictors.base import Correction
from botorch_calib.models.predictors.gaussian import GaussianPredictor
from botorch_calib.posteriors import StatedPosterior, TransformedOutcomePosterior


class TransformedPredictor(GaussianPredictor):
    """A Gaussian model with an increasing outcome transform, such as ``Log``.

    Residuals of its training data are those of the targets, and those of observations are taken
    there as well. Noise variances of observations are transformed as the model does it.
    """

    def moments(self, X: Tensor, Yvar: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of the target of an observation, ``batch_shape x q x 1``."""
        return GaussianPredictor(in_space_of_targets(self.observed)).moments(X, Yvar)

    def scores(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Tensor:
        """``(t - mean) / deviation``, ``n``, with ``t`` the targets of ``Y``."""
        targets = targets_of(self.observed, X, Y)
        if Yvar is not None:
            Yvar = self.observed.outcome_transform(Y, Yvar)[1]
        return super().scores(X, targets, Yvar)

    def posterior(
        self, X: Tensor, correction: Correction, noise: Tensor | None = None
    ) -> StatedPosterior:
        """The posterior of the targets, mapped: see `Predictor.posterior`."""
        X = with_task_feature(self.predicting, X)
        gaussian = GaussianPredictor(in_space_of_targets(self.predicting))
        posterior: Any = gaussian.posterior(X, correction, noise)
        return TransformedOutcomePosterior(posterior, InverseTransform(self.predicting, X))
