"""`predictor_of`: the predictor of a model."""

from __future__ import annotations

from typing import Any

from botorch.models.ensemble import EnsembleModel

from botorch_calib.models.inspection import observed_process
from botorch_calib.models.predictors.base import Predictor
from botorch_calib.models.predictors.gaussian import GaussianPredictor
from botorch_calib.models.predictors.mixture import MixturePredictor


def predictor_of(model: Any) -> Predictor:
    """The predictor of the kind of a base model, whose `Predictor.check` may still refuse it."""
    observed = observed_process(model)
    if getattr(observed, "_is_ensemble", False) or isinstance(observed, EnsembleModel):
        return MixturePredictor(model)
    return GaussianPredictor(model)
