"""How each kind of base model predicts observations, as a calibrator needs it."""

from botorch_calib.models.predictors.base import Correction, Predictor
from botorch_calib.models.predictors.gaussian import GaussianPredictor
from botorch_calib.models.predictors.mixture import MixturePredictor
from botorch_calib.models.predictors.selection import predictor_of

__all__ = ["Correction", "GaussianPredictor", "MixturePredictor", "Predictor", "predictor_of"]
