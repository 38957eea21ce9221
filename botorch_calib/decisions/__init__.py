"""Decisions based on predicted probabilities: chance constraints and constrained search."""

from botorch_calib.decisions.budget import objective_coverage_bound
from botorch_calib.decisions.certified_set_expansion import CertifiedSetExpansion
from botorch_calib.decisions.chance_constrained_search import (
    ChanceConstrainedCandidate,
    optimize_chance_constrained,
)
from botorch_calib.decisions.chance_constraint import ChanceConstraint
from botorch_calib.decisions.confirmation import ConfirmationTest
from botorch_calib.decisions.recommendation import Recommendation, recommend

__all__ = [
    "CertifiedSetExpansion",
    "ChanceConstrainedCandidate",
    "ChanceConstraint",
    "ConfirmationTest",
    "Recommendation",
    "objective_coverage_bound",
    "optimize_chance_constrained",
    "recommend",
]
