"""Calibrators of predictive distributions, with their conformity scores and their learners."""

from botorch_calib.calibration.base import Calibrator, NoCalibration
from botorch_calib.calibration.conformal import LocalizedConformal, OnlineConformal
from botorch_calib.calibration.learners import (
    AggregatedQuantileTracker,
    ExactQuantileLearner,
    OnlineQuantileTracker,
)
from botorch_calib.calibration.recalibration import QuantileRecalibrator
from botorch_calib.calibration.scores import (
    GaussianScore,
    RationalScore,
    Score,
    pit,
    two_sided_p_value,
)

__all__ = [
    "AggregatedQuantileTracker",
    "Calibrator",
    "ExactQuantileLearner",
    "GaussianScore",
    "LocalizedConformal",
    "NoCalibration",
    "OnlineConformal",
    "OnlineQuantileTracker",
    "QuantileRecalibrator",
    "RationalScore",
    "Score",
    "pit",
    "two_sided_p_value",
]
