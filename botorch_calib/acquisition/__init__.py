"""Acquisition functions of calibrated models, under delayed feedback and uncertain contexts.

============================= ======================================================================
file                          content
============================= ======================================================================
``calibrated``                improvement and quantiles in closed form; the base class of all such
``risk``                      value at risk and conditional value at risk, in closed form
``constrained``               improvement under constraints on other outcomes, in closed form
``noisy``                     noisy (hypervolume) improvement by samples, with a cached root
``incumbents``                the values that improvement is measured from, from observations
``delayed``                   confidence bounds under delayed feedback
``thompson``                  Thompson sampling under delayed feedback
``robust``                    worst cases over distributions of a context
``fantasies``                 outcomes of pending points, which closed forms average over
``input_constructors``        how BoTorch, and so Ax, builds each of these functions
============================= ======================================================================
"""

from botorch_calib.acquisition import input_constructors as input_constructors
from botorch_calib.acquisition.calibrated import (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.acquisition.constrained import (
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
)
from botorch_calib.acquisition.delayed import DelayedUpperConfidenceBound
from botorch_calib.acquisition.noisy import (
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.acquisition.risk import (
    CalibratedConditionalValueAtRisk,
    CalibratedValueAtRisk,
)
from botorch_calib.acquisition.robust import (
    RobustAcquisition,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
)
from botorch_calib.acquisition.thompson import DelayedThompsonSampling

__all__ = [
    "CalibratedConditionalValueAtRisk",
    "CalibratedExpectedImprovement",
    "CalibratedProbabilityOfImprovement",
    "CalibratedUpperConfidenceBound",
    "CalibratedValueAtRisk",
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
