"""`DistributionPredictor`: observations by any distribution with a cdf and its inverse."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_calib.models.conditioning import conditioned_on
from botorch_calib.models.predictors.base import Correction, Predictor
from botorch_calib.posteriors import CalibratedPosterior, TransformedOutcomePosterior, normal_scores

# Largest normal score of an observation: one that was given no chance has it.
_FARTHEST = 38.0


class DistributionPredictor(Predictor):
    """A model whose posterior is a distribution of observations, see `normal_scores`.

    Such are Student-t and other ``TorchPosterior`` s, prior-fitted networks and variational
    Bayesian last layers of botorch_community, and what users register. They do not say which part
    of an observation is noise, so nothing is stated of the objective. Observations at different
    points are drawn independently.
    """

    states_objective = False

    def check(self) -> None:
        name = type(self.observed).__name__
        try:
            num = self.observed.num_outputs
        except NotImplementedError:  # by prior-fitted networks, which have one
            num = 1
        if num != 1:
            raise UnsupportedError(
                f"{name} has {num} outputs: use one CalibratedModel per outcome in a "
                "CalibratedModelList, each around a model that was fitted to that outcome alone."
            )

    def scores(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Tensor:
        """``Phi^-1(F(y))``, ``n``, bounded where ``F(y)`` is 0 or 1."""
        if Yvar is not None:
            raise self._takes_no_noise()
        z = normal_scores(self.observed.posterior(X.unsqueeze(-2))).latent(Y.unsqueeze(-1))
        return z.reshape(-1).clamp(-_FARTHEST, _FARTHEST).to(Y)

    def history(self, residuals: str) -> tuple[Tensor, Tensor]:
        """Each observation, by a model that learns in context, is predicted from those before it.

        The first one is left out.
        """
        model = self.observed
        if not _learns_in_context(model):
            return super().history(residuals)
        if residuals != "prequential":
            raise UnsupportedError(
                f"A {type(model).__name__} predicts each observation from those before it: "
                "leave-one-out residuals are for Gaussian processes."
            )
        X, Y = model.train_X, model.train_Y
        scores = [
            type(self)(_with_context(model, X[:i], Y[:i])).scores(X[i : i + 1], Y[i : i + 1])
            for i in range(1, len(X))
        ]
        z = torch.cat(scores) if scores else Y.new_zeros(0)
        return model.transform_inputs(X)[1:].detach(), z

    def conditioned(self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None) -> Model:
        """A model that learns in context with more of it; others by their own method."""
        if Yvar is not None:
            raise self._takes_no_noise()
        model = self.observed
        if not _learns_in_context(model):
            return conditioned_on(model, X, Y)
        context = (torch.cat([model.train_X, X]), torch.cat([model.train_Y, Y]))
        return _with_context(model, *context)

    def posterior(
        self, X: Tensor, correction: Correction, noise: Tensor | None = None
    ) -> TransformedOutcomePosterior:
        """Calibrated normal scores, mapped to observations: see `Predictor.posterior`."""
        if correction.denoise:
            raise self.states_observations_only()
        if noise is not None:
            raise self._takes_no_noise()
        predictive = correction.calibrator.predictive(self.inputs(X))
        mean = torch.zeros(X.shape[:-1], dtype=X.dtype, device=X.device)
        scores = MultivariateNormal(mean, DiagLinearOperator(torch.ones_like(mean)))
        calibrated = CalibratedPosterior(
            GPyTorchPosterior(scores), predictive, 0.0, denoise=False, validate_args=False
        )
        return TransformedOutcomePosterior(calibrated, normal_scores(self.predicting.posterior(X)))

    def _takes_no_noise(self) -> UnsupportedError:
        return UnsupportedError(
            f"A {type(self.observed).__name__} states observations with noise of its own: give "
            "neither `Yvar` nor a tensor `observation_noise`."
        )


def _learns_in_context(model: Any) -> bool:
    return all(hasattr(model, name) for name in ("pfn", "train_X", "train_Y"))


def _with_context(model: Any, X: Tensor, Y: Tensor) -> Any:
    """A model of botorch_community that learns in context, with other data; its network shared."""
    other = copy(model)
    other.train_X, other.train_Y, other.train_Yvar = X, Y, torch.zeros_like(Y)
    other.transformed_X = model.transform_inputs(X)
    return other
