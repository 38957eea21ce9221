"""Calibrated, delay-aware and distributionally robust Bayesian optimization for BoTorch.

Importing the package registers its samplers and input constructors with BoTorch.
"""

from importlib.metadata import PackageNotFoundError, version

from botorch_calib.acquisition import (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    DelayedThompsonSampling,
    DelayedUpperConfidenceBound,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.asynchronous import AsynchronousOptimizer, DelayAwareProposer
from botorch_calib.calibration import (
    Calibrator,
    GaussianScore,
    LocalizedConformal,
    OnlineConformal,
    OnlineQuantileTracker,
    QuantileRecalibrator,
)
from botorch_calib.decisions import ChanceConstraint, optimize_chance_constrained
from botorch_calib.diagnostics import calibration_report, noise_diagnosis
from botorch_calib.distributions import PiecewisePredictive
from botorch_calib.ledger import FeedbackLedger
from botorch_calib.models import CalibratedModel, CalibratedModelList, CensoredDelayModel
from botorch_calib.optim import optimize_robust
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.robust import (
    ChiSquaredBall,
    ConditionalValueAtRisk,
    ContextDistribution,
    KLBall,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)

try:
    __version__ = version("botorch_calib")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"

__all__ = [
    "AsynchronousOptimizer",
    "CalibratedExpectedImprovement",
    "CalibratedModel",
    "CalibratedModelList",
    "CalibratedPosterior",
    "CalibratedProbabilityOfImprovement",
    "CalibratedUpperConfidenceBound",
    "Calibrator",
    "CensoredDelayModel",
    "ChanceConstraint",
    "ChiSquaredBall",
    "ConditionalValueAtRisk",
    "ContextDistribution",
    "DelayAwareProposer",
    "DelayedThompsonSampling",
    "DelayedUpperConfidenceBound",
    "FeedbackLedger",
    "GaussianScore",
    "KLBall",
    "LocalizedConformal",
    "LogCalibratedConstrainedExpectedImprovement",
    "LogCalibratedExpectedImprovement",
    "LogCalibratedProbabilityOfFeasibility",
    "OnlineConformal",
    "OnlineQuantileTracker",
    "PiecewisePredictive",
    "QuantileRecalibrator",
    "RobustUpperConfidenceBound",
    "TotalVariationBall",
    "WassersteinBall",
    "WassersteinUpperConfidenceBound",
    "WorstCase",
    "__version__",
    "calibration_report",
    "noise_diagnosis",
    "optimize_chance_constrained",
    "optimize_robust",
    "qLogCalibratedNoisyExpectedHypervolumeImprovement",
    "qLogCalibratedNoisyExpectedImprovement",
]
