"""`predictor_of`: the predictor of a model."""

from __future__ import annotations

from typing import Any

from botorch_calib.models.predictors.base import Predictor
from botorch_calib.models.predictors.gaussian import GaussianPredictor


def predictor_of(model: Any) -> Predictor:
    """The predictor of the kind of a base model, whose `Predictor.check` may still refuse it."""
    return GaussianPredictor(model)
