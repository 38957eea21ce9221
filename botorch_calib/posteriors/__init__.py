"""Posteriors with calibrated marginals, and their sampler, which registers with BoTorch."""

from botorch_calib.posteriors import _sampler_registration as _sampler_registration
from botorch_calib.posteriors.calibrated import CalibratedPosterior
from botorch_calib.posteriors.several_outcomes import CalibratedPosteriorList
from botorch_calib.posteriors.stated import StatedPosterior

__all__ = ["CalibratedPosterior", "CalibratedPosteriorList", "StatedPosterior"]
