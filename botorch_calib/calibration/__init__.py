"""Calibrators, with the scores and online learners they are made of."""

from botorch_calib.calibration.aggregation import AggregatedQuantileTracker
from botorch_calib.calibration.calibrators import (
    Calibrator,
    LocalizedConformal,
    OnlineConformal,
)
from botorch_calib.calibration.density_ratio import ClassifierDensityRatio
from botorch_calib.calibration.diagnostics import calibration_report
from botorch_calib.calibration.exact import ExactQuantileLearner
from botorch_calib.calibration.recalibration import QuantileRecalibrator
from botorch_calib.calibration.report import CalibrationReport
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
from botorch_calib.calibration.weighted import WeightedConformal

__all__ = [
    "CalibrationReport",
    "AggregatedQuantileTracker",
    "Calibrator",
    "ClassifierDensityRatio",
    "LocalizedConformal",
    "OnlineConformal",
    "ExactQuantileLearner",
    "GaussianScore",
    "OnlineQuantileTracker",
    "QuantileRecalibrator",
    "RationalScore",
    "Score",
    "WeightedConformal",
    "history_residuals",
    "calibration_report",
    "loo_residuals",
    "pit",
    "prequential_residuals",
    "two_sided_p_value",
]
