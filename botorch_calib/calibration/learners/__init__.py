"""Learners of thresholds: quantiles of conformity scores, as a function of the inputs."""

from botorch_calib.calibration.learners.automatic_settings import AggregatedQuantileTracker
from botorch_calib.calibration.learners.kernel_quantile_regression import ExactQuantileLearner
from botorch_calib.calibration.learners.online import OnlineQuantileTracker
from botorch_calib.calibration.learners.quantile_learner import QuantileLearner

__all__ = [
    "AggregatedQuantileTracker",
    "ExactQuantileLearner",
    "OnlineQuantileTracker",
    "QuantileLearner",
]
