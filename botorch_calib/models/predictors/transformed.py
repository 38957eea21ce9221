"""`TransformedPredictor`: Gaussian predictions in the space of the targets, mapped to outcomes."""

from __future__ import annotations

from torch import Tensor

from botorch_calib.calibration import Calibrator
from botorch_calib.models.inspection import with_task_feature
from botorch_calib.models.marginals import in_space_of_targets
from botorch_calib.models.outcome_transforms import InverseTransform, targets_of
from botorch_calib.models.predictors.gaussian import GaussianPredictor
from botorch_calib.posteriors import TransformedOutcomePosterior


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

    def posterior(  # type: ignore[override]
        self,
        X: Tensor,
        calibrator: Calibrator,
        denoise: bool,
        excess: str,
        noise: Tensor | None = None,
    ) -> TransformedOutcomePosterior:
        """That of the targets, mapped: see `Predictor.posterior`."""
        X = with_task_feature(self.predicting, X)
        gaussian = GaussianPredictor(in_space_of_targets(self.predicting))
        posterior = gaussian.posterior(X, calibrator, denoise, excess, noise)
        return TransformedOutcomePosterior(posterior, InverseTransform(self.predicting, X))
