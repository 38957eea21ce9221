"""`GaussianPredictor`: Gaussian predictions in units of the outcome."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from torch import Tensor

from botorch_calib.models.conditioning import with_observations
from botorch_calib.models.inspection import (
    in_output_task,
    least_variance,
    objective_variance,
    observation_noise_variance,
    with_task_feature,
)
from botorch_calib.models.marginals import posterior_at
from botorch_calib.models.outcome_transforms import check_increasing
from botorch_calib.models.predictors.base import Correction, Predictor
from botorch_calib.models.requirements import check_base, check_one_value_each
from botorch_calib.models.residuals import forecast_history
from botorch_calib.posteriors import CalibratedPosterior, StatedPosterior


class GaussianPredictor(Predictor):
    """A model with one output, a Gaussian likelihood and no or an affine outcome transform."""

    posterior_class: type[CalibratedPosterior] = CalibratedPosterior

    def check(self) -> None:
        check_base(self.model)
        check_increasing(self.observed)

    def moments(self, X: Tensor, Yvar: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of an observation by the model of observed data.

        Both are ``batch_shape x q x 1`` at ``batch_shape x q x d``, in units of the outcome; of an
        ensemble ``batch_shape x num_members x q x 1``. For ``X`` of shape ``n x 1 x d`` noise
        variances ``n x 1`` may be given; the model's are used where they are NaN.
        """
        X = with_task_feature(self.observed, X)
        posterior = self._gaussian_posterior(self.observed, X)
        check_one_value_each(posterior.mean.shape[-2], X, "The score of an observation")
        noise = observation_noise_variance(self.observed, posterior, X)
        if Yvar is not None:
            given = Yvar.view(-1, *[1] * (posterior.mean.dim() - 1))
            learned = getattr(self.observed.likelihood, "second_noise_covar", None)
            if learned is not None:  # which comes on top of what is given
                more = learned.noise.unsqueeze(-1)
                more = observation_noise_variance(self.observed, posterior, X, given=more)
                given = given + more
            noise = torch.where(given.isnan(), noise, given)
        return posterior.mean, (objective_variance(self.observed, posterior) + noise).sqrt()

    def scores(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Tensor:
        """``(y - mean) / deviation``, ``n``."""
        # One point a batch: only the marginals are needed.
        mean, deviation = self.moments(X.unsqueeze(-2), Yvar)
        return ((Y.unsqueeze(-1) - mean) / deviation).reshape(-1)

    def history(self, residuals: str) -> tuple[Tensor, Tensor]:
        """Inputs and standardised residuals of the training data, of the output task."""
        X, z, _ = forecast_history(self.observed, residuals)
        own = in_output_task(self.observed, X)
        return X[own], z[own]

    def conditioned(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Model:
        if self.observed is not self.model:  # pending rows are so no longer
            conditioned: Model = self.model.with_observations(X, Y, Yvar)
            return conditioned
        return with_observations(self.observed, X, Y, Yvar)

    def posterior(
        self, X: Tensor, correction: Correction, noise: Tensor | None = None
    ) -> StatedPosterior:
        X = with_task_feature(self.predicting, X)
        posterior = self._gaussian_posterior(self.predicting, X)
        predictive = correction.calibrator.predictive(self.inputs(X, posterior))
        noise = observation_noise_variance(self.predicting, posterior, X, given=noise)
        least = least_variance(self.predicting, posterior)
        _, denoise, excess = correction
        return self.posterior_class(
            posterior, predictive, noise, denoise, excess, least, validate_args=False
        )

    def _gaussian_posterior(self, model: Any, X: Tensor) -> GPyTorchPosterior:
        posterior = posterior_at(model, X, members=self.is_ensemble)
        if not isinstance(posterior, GPyTorchPosterior):
            raise UnsupportedError(
                f"The posterior of {type(model).__name__} is a {type(posterior).__name__}, "
                "not Gaussian in the units of the outcome: let the model have Standardize or no "
                "outcome transform, and apply nonlinear ones to the observations beforehand."
            )
        return posterior
