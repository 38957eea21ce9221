"""Decisions that use stated probabilities: chance constraints, and the search they allow.

============================= ======================================================================
file                          content
============================= ======================================================================
``chance_constraints``        `ChanceConstraint`: an outcome that keeps its limits
``several_constraints``       several of them with one budget
``budget``                    `Budget`: how many violations there may be
``shared_risk``               how limits that hold together share the probability of a violation
``widening``                  by which factor the quantile that decides is wider than stated
``predicted_outcome``         quantiles of the next outcome, of any model
``worst_contexts``            the same for every distribution of a context in an ambiguity set
``account``                   decisions as plain records, and the budget that they leave
``chance_constrained_search`` `optimize_chance_constrained`: the best point that is certified
``certified_set_expansion``   where an observation would do most for the certified set
``recommendation``            `recommend`: the point to stop at
``confirmation``              `ConfirmationTest`: that one point is safe, by repetition
``objective_coverage``        a bound for the objective from one for its outcomes
============================= ======================================================================
"""

from botorch_calib.decisions.certified_set_expansion import CertifiedSetExpansion
from botorch_calib.decisions.chance_constrained_search import (
    ChanceConstrainedCandidate,
    optimize_chance_constrained,
)
from botorch_calib.decisions.chance_constraints import ChanceConstraint
from botorch_calib.decisions.confirmation import ConfirmationTest
from botorch_calib.decisions.objective_coverage import objective_coverage_bound
from botorch_calib.decisions.recommendation import Recommendation, recommend
from botorch_calib.decisions.several_constraints import joint_chance_constraints

__all__ = [
    "CertifiedSetExpansion",
    "ChanceConstrainedCandidate",
    "ChanceConstraint",
    "ConfirmationTest",
    "Recommendation",
    "joint_chance_constraints",
    "objective_coverage_bound",
    "optimize_chance_constrained",
    "recommend",
]
