"""Predictive distributions in closed form."""

from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.smoothed import SmoothedPredictive, UnsmoothedPredictive

__all__ = ["PiecewisePredictive", "SmoothedPredictive", "UnsmoothedPredictive"]
