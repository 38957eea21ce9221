"""How each kind of base model predicts observations, as a calibrator needs it.

==================== ===============================================================================
file                 content
==================== ===============================================================================
``base``             `Predictor`: what a calibrated model asks of its base model
``gaussian``         Gaussian processes with no or an affine outcome transform
``selection``        `predictor_of`: the predictor of a model
==================== ===============================================================================
"""

from botorch_calib.models.predictors.base import Predictor
from botorch_calib.models.predictors.gaussian import GaussianPredictor
from botorch_calib.models.predictors.selection import predictor_of

__all__ = ["GaussianPredictor", "Predictor", "predictor_of"]
