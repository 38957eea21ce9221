"""Test problems: BoTorch test functions with delays, contexts or heteroscedastic noise."""

from botorch_calib.test_functions.contextual import ContextShift, ContextualProblem, Newsvendor
from botorch_calib.test_functions.delayed import (
    Arrival,
    DelayDistribution,
    DelayedProblem,
    FixedDelay,
    PoissonDelay,
    draw_delay,
)
from botorch_calib.test_functions.heteroscedastic import (
    HeteroscedasticAckley,
    HeteroscedasticNoise,
    IntervalStudy1d,
)

__all__ = [
    "Arrival",
    "ContextShift",
    "ContextualProblem",
    "DelayDistribution",
    "DelayedProblem",
    "FixedDelay",
    "HeteroscedasticAckley",
    "HeteroscedasticNoise",
    "IntervalStudy1d",
    "Newsvendor",
    "PoissonDelay",
    "draw_delay",
]
