"""Acquisition functions of calibrated models, under delayed feedback and uncertain contexts."""

from botorch_calib.acquisition import input_constructors as input_constructors
from botorch_calib.acquisition.confidence_bound import (
    CalibratedExpectedShortfall,
    CalibratedUpperConfidenceBound,
)
from botorch_calib.acquisition.constrained import (
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
)
from botorch_calib.acquisition.delayed import DelayedUpperConfidenceBound
from botorch_calib.acquisition.improvement import (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.acquisition.noisy import (
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.acquisition.robust import (
    RobustAcquisition,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
)
from botorch_calib.acquisition.thompson import DelayedThompsonSampling

__all__ = [
    "CalibratedExpectedImprovement",
    "CalibratedExpectedShortfall",
    "CalibratedProbabilityOfImprovement",
    "CalibratedUpperConfidenceBound",
    "DelayedThompsonSampling",
    "DelayedUpperConfidenceBound",
    "LogCalibratedConstrainedExpectedImprovement",
    "LogCalibratedExpectedImprovement",
    "LogCalibratedProbabilityOfFeasibility",
    "RobustAcquisition",
    "RobustUpperConfidenceBound",
    "WassersteinUpperConfidenceBound",
    "qLogCalibratedNoisyExpectedHypervolumeImprovement",
    "qLogCalibratedNoisyExpectedImprovement",
]
