"""Distributional robustness: worst-case expectations over distributions of the context.

A model takes decisions ``x`` and contexts ``c`` together (`joint_inputs`). The value of a decision
is the worst expectation of a function ``u(x, c)`` over an ambiguity set (`sets`) around a
`ContextDistribution` (`contexts`). `contextual_function` defines the interface of ``u``, and `gp`
implements it for models. The acquisition functions are in `botorch_calib.acquisition.robust`.
"""

from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.contextual_function import ContextualFunction
from botorch_calib.robust.gp.closed_form_bound import ClosedFormConfidenceBound
from botorch_calib.robust.joint_inputs import join_contexts
from botorch_calib.robust.sets import (
    AmbiguitySet,
    ChiSquaredBall,
    ConditionalValueAtRisk,
    KLBall,
    RadiusSchedule,
    TotalVariationBall,
    WassersteinBall,
    WorstCase,
)

__all__ = [
    "AmbiguitySet",
    "ChiSquaredBall",
    "ClosedFormConfidenceBound",
    "ConditionalValueAtRisk",
    "ContextDistribution",
    "ContextualFunction",
    "KLBall",
    "RadiusSchedule",
    "TotalVariationBall",
    "WassersteinBall",
    "WorstCase",
    "join_contexts",
]
