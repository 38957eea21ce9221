"""Distributional robustness: confidence bounds on contexts, and laws of the contexts."""

from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.gp.closed_form_bound import ClosedFormConfidenceBound
from botorch_calib.robust.inputs import join_contexts
from botorch_calib.robust.radius import RadiusSchedule, log_covering_number, wasserstein_radius
from botorch_calib.robust.sets import (
    ChiSquaredBall,
    ConditionalValueAtRisk,
    KLBall,
    TotalVariationBall,
    WorstCase,
)
from botorch_calib.robust.sets.base import AmbiguitySet
from botorch_calib.robust.sets.mmd import MMDBall
from botorch_calib.robust.sets.wasserstein import WassersteinBall

__all__ = [
    "AmbiguitySet",
    "ChiSquaredBall",
    "ClosedFormConfidenceBound",
    "ConditionalValueAtRisk",
    "ContextDistribution",
    "KLBall",
    "MMDBall",
    "RadiusSchedule",
    "TotalVariationBall",
    "WassersteinBall",
    "WorstCase",
    "join_contexts",
    "log_covering_number",
    "wasserstein_radius",
]
