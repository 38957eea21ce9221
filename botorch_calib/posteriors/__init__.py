"""Posteriors whose marginals are calibrated laws."""

from botorch_calib.posteriors.calibrated import CalibratedPosterior

__all__ = ["CalibratedPosterior"]
