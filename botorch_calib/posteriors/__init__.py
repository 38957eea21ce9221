"""Posteriors with calibrated marginals, and their sampler, which registers with BoTorch."""

from botorch_calib.posteriors import _sampler_registration as _sampler_registration
from botorch_calib.posteriors.base import StatedPosterior
from botorch_calib.posteriors.calibrated import CalibratedPosterior
from botorch_calib.posteriors.distribution_functions import normal_scores
from botorch_calib.posteriors.mixture import CalibratedMixturePosterior
from botorch_calib.posteriors.outcome_maps import OutcomeMap
from botorch_calib.posteriors.posterior_list import CalibratedPosteriorList
from botorch_calib.posteriors.transformed import TransformedOutcomePosterior

__all__ = [
    "CalibratedMixturePosterior",
    "CalibratedPosterior",
    "CalibratedPosteriorList",
    "OutcomeMap",
    "StatedPosterior",
    "TransformedOutcomePosterior",
    "normal_scores",
]
