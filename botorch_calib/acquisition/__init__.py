"""Acquisition functions in closed form under calibrated laws."""

from botorch_calib.acquisition import input_constructors as input_constructors
from botorch_calib.acquisition.calibrated import (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.acquisition.proposals import proposal_samples

__all__ = [
    "CalibratedExpectedImprovement",
    "CalibratedProbabilityOfImprovement",
    "CalibratedUpperConfidenceBound",
    "LogCalibratedExpectedImprovement",
    "proposal_samples",
]
