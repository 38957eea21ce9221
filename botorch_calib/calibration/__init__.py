"""Scores of observations and online learners of their quantiles."""

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
    "GaussianScore",
    "OnlineQuantileTracker",
    "RationalScore",
    "Score",
    "loo_residuals",
    "pit",
    "prequential_residuals",
    "two_sided_p_value",
]
