"""`predictor_of`: the predictor of a model."""

from __future__ import annotations

from typing import Any

from botorch_calib.models.inspection import observed_process
from botorch_calib.models.predictors.base import Predictor
from botorch_calib.models.predictors.gaussian import GaussianPredictor
from botorch_calib.models.predictors.transformed import TransformedPredictor


def predictor_of(model: Any) -> Predictor:
    """The predictor of the kind of a base model, whose `Predictor.check` may still refuse it."""
    transform = getattr(observed_process(model), "outcome_transform", None)
    if transform is not None and not getattr(transform, "_is_linear", False):
        return TransformedPredictor(model)
    return GaussianPredictor(model)
