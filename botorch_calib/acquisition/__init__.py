"""Acquisition functions of calibrated models, under delayed feedback and uncertain contexts."""

from botorch_calib.acquisition import input_constructors as input_constructors
from botorch_calib.acquisition.calibrated import (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.acquisition.certified_set_expansion import CertifiedSetExpansion
from botorch_calib.acquisition.chance_constrained_search import (
    ChanceConstrainedCandidate,
    optimize_chance_constrained,
)
from botorch_calib.acquisition.chance_constraints import (
    ChanceConstraint,
    joint_chance_constraints,
    joint_level,
)
from botorch_calib.acquisition.constrained import (
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
)
from botorch_calib.acquisition.delayed import DelayedUpperConfidenceBound
from botorch_calib.acquisition.next_query_samples import proposal_samples
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
from botorch_calib.acquisition.robust_search import optimize_robust
from botorch_calib.acquisition.thompson import DelayedThompsonSampling

__all__ = [
    "CalibratedConditionalValueAtRisk",
    "CalibratedExpectedImprovement",
    "CalibratedProbabilityOfImprovement",
    "CalibratedUpperConfidenceBound",
    "CalibratedValueAtRisk",
    "CertifiedSetExpansion",
    "ChanceConstrainedCandidate",
    "ChanceConstraint",
    "DelayedThompsonSampling",
    "DelayedUpperConfidenceBound",
    "LogCalibratedConstrainedExpectedImprovement",
    "LogCalibratedExpectedImprovement",
    "LogCalibratedProbabilityOfFeasibility",
    "RobustAcquisition",
    "RobustUpperConfidenceBound",
    "WassersteinUpperConfidenceBound",
    "joint_chance_constraints",
    "joint_level",
    "optimize_chance_constrained",
    "optimize_robust",
    "proposal_samples",
    "qLogCalibratedNoisyExpectedHypervolumeImprovement",
    "qLogCalibratedNoisyExpectedImprovement",
]
