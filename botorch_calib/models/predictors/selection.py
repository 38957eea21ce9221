"""`predictor_of`: the predictor of a model."""

from __future__ import annotations

from typing import Any

from botorch.models.ensemble import EnsembleModel
from botorch.models.gpytorch import GPyTorchModel
from botorch.models.model import ModelList
from gpytorch.models import GP

from botorch_calib.models.inspection import observed_process
from botorch_calib.models.predictors.base import Predictor
from botorch_calib.models.predictors.by_normal_scores import DistributionPredictor
from botorch_calib.models.predictors.gaussian import GaussianPredictor
from botorch_calib.models.predictors.mixture import MixturePredictor
from botorch_calib.models.predictors.transformed_gaussian import TransformedPredictor


def predictor_of(model: Any) -> Predictor:
    """The predictor of the kind of a base model, whose `Predictor.check` may still refuse it."""
    observed = observed_process(model)
    if getattr(observed, "_is_ensemble", False) or isinstance(observed, EnsembleModel):
        return MixturePredictor(model)
    if not isinstance(observed, (GPyTorchModel, GP, ModelList)):
        return DistributionPredictor(model)
    transform = getattr(observed, "outcome_transform", None)
    if transform is not None and not getattr(transform, "_is_linear", False):
        return TransformedPredictor(model)
    return GaussianPredictor(model)
