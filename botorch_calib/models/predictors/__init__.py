"""How each kind of base model predicts observations, as a calibrator needs it.

========================== =========================================================================
file                       content
========================== =========================================================================
``base``                   `Predictor`: what a calibrated model asks of its base model
``gaussian``               Gaussian processes with no or an affine outcome transform
``transformed_gaussian``   Gaussian processes with another increasing outcome transform
``by_normal_scores``       whatever states a distribution with a cdf and its inverse
``mixture``                ensembles and fully Bayesian models: mixtures of Gaussian predictions
``selection``              `predictor_of`: the predictor of a model
========================== =========================================================================
"""

from botorch_calib.models.predictors.base import Correction, Predictor
from botorch_calib.models.predictors.gaussian import GaussianPredictor
from botorch_calib.models.predictors.mixture import MixturePredictor
from botorch_calib.models.predictors.selection import predictor_of

__all__ = ["Correction", "GaussianPredictor", "MixturePredictor", "Predictor", "predictor_of"]
