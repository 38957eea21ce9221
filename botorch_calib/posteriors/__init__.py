"""Predictions and posteriors of outcomes. Importing them registers their sampler with BoTorch."""

from botorch_calib.posteriors.calibrated import CalibratedPosterior
from botorch_calib.posteriors.distribution_functions import normal_scores
from botorch_calib.posteriors.outcome_maps import OutcomeMap
from botorch_calib.posteriors.posterior_list import CalibratedPosteriorList
from botorch_calib.posteriors.prediction import Prediction

__all__ = [
    "CalibratedPosterior",
    "CalibratedPosteriorList",
    "OutcomeMap",
    "Prediction",
    "normal_scores",
]
