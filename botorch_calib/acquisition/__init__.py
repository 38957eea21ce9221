"""Acquisition functions of calibrated models, under delayed feedback and uncertain contexts.

============================= ======================================================================
file                          content
============================= ======================================================================
``base``                      the base class of all closed forms: what they read of their models
``improvement``               expected improvement, its logarithm, and its probability
``confidence_bound``          quantiles, of the objective or an outcome (value at risk)
``expected_shortfall``        the mean of the worst outcomes (conditional value at risk)
``constrained``               improvement under constraints on other outcomes
``noisy``                     noisy (hypervolume) improvement by samples, with a cached root
``delayed``                   confidence bounds under delayed feedback
``thompson``                  Thompson sampling under delayed feedback
``robust``                    worst cases over distributions of a context
``pending_points``            points under evaluation, and fantasies of their outcomes
``input_constructors``        how BoTorch, and so Ax, builds these functions; their incumbents
============================= ======================================================================
"""

from botorch_calib.acquisition import input_constructors as input_constructors
from botorch_calib.acquisition.confidence_bound import CalibratedUpperConfidenceBound
from botorch_calib.acquisition.constrained import (
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
)
from botorch_calib.acquisition.delayed import DelayedUpperConfidenceBound
from botorch_calib.acquisition.expected_shortfall import CalibratedExpectedShortfall
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
