"""Test problems: BoTorch ``SyntheticTestFunction`` classes for the regimes of this package."""

from botorch_calib.test_functions.heteroscedastic import (
    HeteroscedasticAckley,
    HeteroscedasticNoise,
    IntervalStudy1d,
    one_sided_initial_design,
)

__all__ = [
    "HeteroscedasticAckley",
    "HeteroscedasticNoise",
    "IntervalStudy1d",
    "one_sided_initial_design",
]
