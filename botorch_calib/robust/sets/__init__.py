"""Ambiguity sets, one per file; `base` defines the base classes and explains how to add a set."""

from botorch_calib.robust.sets.base import AmbiguitySet, Ball, RadiusSchedule
from botorch_calib.robust.sets.chi_squared import ChiSquaredBall
from botorch_calib.robust.sets.conditional_value_at_risk import ConditionalValueAtRisk
from botorch_calib.robust.sets.kullback_leibler import KLBall
from botorch_calib.robust.sets.total_variation import TotalVariationBall
from botorch_calib.robust.sets.wasserstein import WassersteinBall
from botorch_calib.robust.sets.worst_case import WorstCase

__all__ = [
    "AmbiguitySet",
    "Ball",
    "ChiSquaredBall",
    "ConditionalValueAtRisk",
    "KLBall",
    "RadiusSchedule",
    "TotalVariationBall",
    "WassersteinBall",
    "WorstCase",
]
