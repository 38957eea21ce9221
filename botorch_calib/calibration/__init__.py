"""Calibrators, with the scores and online learners they are made of."""

from botorch_calib.calibration.calibrators import (
    Calibrator,
    LocalizedConformal,
    OnlineConformal,
)
from botorch_calib.calibration.scores import (
    GaussianScore,
    RationalScore,
    Score,
    loo_residuals,
    pit,
    prequential_residuals,
    two_sided_p_value,
)
from botorch_calib.calibration.tracker import OnlineQuantileTracker

__all__ = [
    "Calibrator",
    "LocalizedConformal",
    "OnlineConformal",
    "GaussianScore",
    "OnlineQuantileTracker",
    "RationalScore",
    "Score",
    "loo_residuals",
    "pit",
    "prequential_residuals",
    "two_sided_p_value",
]
