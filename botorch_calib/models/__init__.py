"""Models that wrap BoTorch models."""

from botorch_calib.models.calibrated import CalibratedModel

__all__ = ["CalibratedModel"]
