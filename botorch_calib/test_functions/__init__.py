"""Test problems: BoTorch test functions for the regimes of this package."""

from botorch_calib.test_functions.contextual import (
    ContextShift,
    ContextualAckley,
    ContextualAckley2d,
    ContextualHartmann6,
    ContextualProblem,
    ModifiedBranin,
    Newsvendor,
    ThreeHumpCamel,
)
from botorch_calib.test_functions.delayed import (
    Arrival,
    DelayDistribution,
    DelayedProblem,
    FixedDelay,
    GeometricDelay,
    InputDependentDelay,
    LogNormalDelay,
    PoissonDelay,
    draw_delay,
)
from botorch_calib.test_functions.heteroscedastic import (
    HeteroscedasticAckley,
    HeteroscedasticNoise,
    IntervalStudy1d,
    one_sided_initial_design,
)
from botorch_calib.test_functions.radio import RadioCorridors

__all__ = [
    "Arrival",
    "ContextShift",
    "ContextualAckley",
    "ContextualAckley2d",
    "ContextualHartmann6",
    "ContextualProblem",
    "DelayDistribution",
    "DelayedProblem",
    "FixedDelay",
    "GeometricDelay",
    "HeteroscedasticAckley",
    "HeteroscedasticNoise",
    "InputDependentDelay",
    "IntervalStudy1d",
    "LogNormalDelay",
    "ModifiedBranin",
    "Newsvendor",
    "PoissonDelay",
    "RadioCorridors",
    "ThreeHumpCamel",
    "draw_delay",
    "one_sided_initial_design",
]
