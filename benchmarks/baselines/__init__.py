"""Rivals of the papers, which suites compare with: conformal Bayesian optimization, the MMD ball.

``weighted_conformal`` has the calibrator of conformal Bayesian optimization, and ``density_ratio``
its weights. ``mmd_ball`` has `MMDBall`, and ``simplex_in_ellipsoid`` its solver.
"""

from benchmarks.baselines.density_ratio import ClassifierDensityRatio, proposal_samples
from benchmarks.baselines.mmd_ball import MMDBall
from benchmarks.baselines.weighted_conformal import WeightedConformal

__all__ = ["ClassifierDensityRatio", "MMDBall", "WeightedConformal", "proposal_samples"]
