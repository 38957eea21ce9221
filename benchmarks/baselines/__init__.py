"""Rivals of the papers, which the suites compare with: weighted conformal prediction, the MMD ball.

======================== ===========================================================================
file                     content
======================== ===========================================================================
``weighted_conformal``   `WeightedConformal`: the calibrator of conformal Bayesian optimization
``density_ratio``        `ClassifierDensityRatio`: its weights, by classifying samples
``next_query_samples``   where an acquisition function would query next, for these samples
``mmd_ball``             `MMDBall`: an ambiguity set in the maximum mean discrepancy
``simplex_in_ellipsoid`` the solver of that ball
======================== ===========================================================================
"""

from benchmarks.baselines.density_ratio import ClassifierDensityRatio
from benchmarks.baselines.mmd_ball import MMDBall
from benchmarks.baselines.next_query_samples import proposal_samples
from benchmarks.baselines.weighted_conformal import WeightedConformal

__all__ = ["ClassifierDensityRatio", "MMDBall", "WeightedConformal", "proposal_samples"]
