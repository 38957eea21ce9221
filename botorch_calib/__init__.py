"""Calibrated, delay-aware and distributionally robust Bayesian optimization for BoTorch.

Importing the package registers its samplers and input constructors with BoTorch.
"""

from importlib.metadata import PackageNotFoundError, version

from botorch_calib.acquisition import (
    CalibratedConditionalValueAtRisk,
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    CalibratedValueAtRisk,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    RobustAcquisition,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.asynchronous import (
    AsynchronousOptimizer,
    DelayAwareProposer,
    DelayStrategy,
    EvaluationLimits,
    SearchSettings,
)
from botorch_calib.calibration import (
    Calibrator,
    GaussianScore,
    LocalizedConformal,
    OnlineConformal,
    OnlineQuantileTracker,
    QuantileRecalibrator,
    RationalScore,
    WeightedConformal,
    pit,
    two_sided_p_value,
)
from botorch_calib.decisions import (
    CertifiedSetExpansion,
    ChanceConstraint,
    joint_chance_constraints,
    optimize_chance_constrained,
)
from botorch_calib.diagnostics import (
    CalibrationReport,
    NoiseDiagnosis,
    calibration_report,
    noise_diagnosis,
)
from botorch_calib.distributions import PiecewisePredictive
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import (
    CalibratedModel,
    CensoredDelayModel,
    loo_residuals,
    prequential_residuals,
)
from botorch_calib.optim import optimize_robust
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.robust import (
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    MMDBall,
    RadiusSchedule,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
    join_contexts,
)

try:
    __version__ = version("botorch_calib")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0+unknown"

__all__ = [
    "AsynchronousOptimizer",
    "CalibratedConditionalValueAtRisk",
    "CalibratedExpectedImprovement",
    "CalibratedModel",
    "CalibratedPosterior",
    "CalibratedProbabilityOfImprovement",
    "CalibratedUpperConfidenceBound",
    "CalibratedValueAtRisk",
    "CalibrationReport",
    "Calibrator",
    "CensoredDelayModel",
    "CertifiedSetExpansion",
    "ChanceConstraint",
    "ChiSquaredBall",
    "ConditionalValueAtRisk",
    "ContextDistribution",
    "DelayAwareProposer",
    "DelayStrategy",
    "DelayedThompsonSampling",
    "DelayedUpperConfidenceBound",
    "EvaluationLimits",
    "FeedbackLedger",
    "GaussianScore",
    "KLBall",
    "LocalizedConformal",
    "LogCalibratedConstrainedExpectedImprovement",
    "LogCalibratedExpectedImprovement",
    "LogCalibratedProbabilityOfFeasibility",
    "MMDBall",
    "NoiseDiagnosis",
    "OnlineConformal",
    "OnlineQuantileTracker",
    "PiecewisePredictive",
    "QuantileRecalibrator",
    "RadiusSchedule",
    "RationalScore",
    "RobustAcquisition",
    "RobustUpperConfidenceBound",
    "SearchSettings",
    "TotalVariationBall",
    "WassersteinBall",
    "WassersteinUpperConfidenceBound",
    "WeightedConformal",
    "WorstCase",
    "__version__",
    "calibration_report",
    "join_contexts",
    "joint_chance_constraints",
    "loo_residuals",
    "noise_diagnosis",
    "optimize_chance_constrained",
    "optimize_robust",
    "pit",
    "prequential_residuals",
    "qLogCalibratedNoisyExpectedHypervolumeImprovement",
    "qLogCalibratedNoisyExpectedImprovement",
    "two_sided_p_value",
]
