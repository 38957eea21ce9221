"""Calibrators, with the scores and online learners they are made of."""

from botorch_calib.calibration.aggregation import AggregatedQuantileTracker
from botorch_calib.calibration.calibrators import (
    Calibrator,
    LocalizedConformal,
    OnlineConformal,
)
from botorch_calib.calibration.exact import ExactQuantileLearner
from botorch_calib.calibration.recalibration import QuantileRecalibrator
from botorch_calib.calibration.scores import (
    GaussianScore,
    RationalScore,
    Score,
    history_residuals,
    loo_residuals,
    pit,
    prequential_residuals,
    two_sided_p_value,
)
from botorch_calib.calibration.tracker import OnlineQuantileTracker

__all__ = [
    "AggregatedQuantileTracker",
    "Calibrator",
    "LocalizedConformal",
    "OnlineConformal",
    "ExactQuantileLearner",
    "GaussianScore",
    "OnlineQuantileTracker",
    "QuantileRecalibrator",
    "RationalScore",
    "Score",
    "history_residuals",
    "loo_residuals",
    "pit",
    "prequential_residuals",
    "two_sided_p_value",
]
