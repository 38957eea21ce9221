"""Posteriors with calibrated marginals, and their sampler, which registers with BoTorch."""

from botorch_calib.posteriors import sampler as sampler
from botorch_calib.posteriors.calibrated import CalibratedPosterior

__all__ = ["CalibratedPosterior"]
