"""Learners of quantiles from a stream of conformity scores."""

from botorch_calib.calibration.learners.automatic_settings import AggregatedQuantileTracker
from botorch_calib.calibration.learners.base import QuantileLearner
from botorch_calib.calibration.learners.exact import ExactQuantileLearner
from botorch_calib.calibration.learners.online import OnlineQuantileTracker

__all__ = [
    "AggregatedQuantileTracker",
    "ExactQuantileLearner",
    "OnlineQuantileTracker",
    "QuantileLearner",
]
