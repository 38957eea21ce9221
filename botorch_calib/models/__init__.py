"""Models that wrap BoTorch models."""

from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.delayed import CensoredDelayModel

__all__ = ["CalibratedModel", "CensoredDelayModel"]
