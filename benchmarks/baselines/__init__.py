"""Competing methods: conformal Bayesian optimization, OCBO as published, the MMD ball.

* ``weighted_conformal.py`` and ``density_ratio.py``: the calibrator of conformal Bayesian
  optimization, and its weights.
* ``recalibrated_cdf.py``: the calibrator of OCBO's experiments.
* ``mmd_ball.py`` and ``simplex_in_ellipsoid.py``: the ambiguity set, and its solver.
"""

from benchmarks.baselines.density_ratio import ClassifierDensityRatio, proposal_samples
from benchmarks.baselines.mmd_ball import MMDBall
from benchmarks.baselines.recalibrated_cdf import RecalibratedCdf
from benchmarks.baselines.weighted_conformal import WeightedConformal

__all__ = [
    "ClassifierDensityRatio",
    "MMDBall",
    "RecalibratedCdf",
    "WeightedConformal",
    "proposal_samples",
]
