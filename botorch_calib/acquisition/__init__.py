"""Acquisition functions of calibrated models, under delayed feedback and uncertain contexts.

============================= ======================================================================
file                          content
============================= ======================================================================
``calibrated``                improvement and quantiles in closed form; the base class of all such
``risk``                      value at risk and conditional value at risk, in closed form
``constrained``               improvement under constraints on other outcomes, in closed form
``noisy``                     noisy (hypervolume) improvement by samples, with a cached root
``incumbents``                the values that improvement is measured from, from observations
``chance_constraints``        `ChanceConstraint`: an outcome that keeps its limits
``violation_account``         the books that the bound on its violations rests on
``chance_constrained_search`` `optimize_chance_constrained`: the best point that is certified
``certified_set_expansion``   where an observation would do most for the certified set
``delayed``                   confidence bounds under delayed feedback
``thompson``                  Thompson sampling under delayed feedback
``robust``                    worst cases over distributions of a context
``robust_search``             `optimize_robust`: the best decision by such a worst case
``fantasies``                 outcomes of pending points, which closed forms average over
``input_constructors``        how BoTorch, and so Ax, builds each of these functions
``next_query_samples``        where a function would query next, for density ratios
``unit_box``                  a search whose end does not depend on any units
``separate_starts``           the option by which it climbs from each start on its own
``random_seeds``              random numbers that depend on seeds alone
============================= ======================================================================
"""

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
