"""Calibrators, with the conformity scores and online learners they are made of."""

from botorch_calib.calibration.base import Calibrator, NoCalibration
from botorch_calib.calibration.conformal import LocalizedConformal, OnlineConformal
from botorch_calib.calibration.learners.automatic_settings import AggregatedQuantileTracker
from botorch_calib.calibration.learners.kernel_quantile_regression import ExactQuantileLearner
from botorch_calib.calibration.learners.online import OnlineQuantileTracker
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
