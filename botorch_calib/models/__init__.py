"""Models that wrap BoTorch models, and residuals of a Gaussian process on its own training data."""

from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.delayed import CensoredDelayModel
from botorch_calib.models.residuals import loo_residuals, prequential_residuals
from botorch_calib.models.sample_paths import CalibratedPath

__all__ = [
    "CalibratedModel",
    "CalibratedPath",
    "CensoredDelayModel",
    "loo_residuals",
    "prequential_residuals",
]
