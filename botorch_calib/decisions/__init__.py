"""Decisions that use stated probabilities: chance constraints, and the search they allow.

============================= ======================================================================
file                          content
============================= ======================================================================
``chance_constraints``        `ChanceConstraint`: an outcome that keeps its limits
``violation_account``         the books that the bound on its violations rests on
``chance_constrained_search`` `optimize_chance_constrained`: the best point that is certified
``certified_set_expansion``   where an observation would do most for the certified set
============================= ======================================================================
"""

from botorch_calib.decisions.certified_set_expansion import CertifiedSetExpansion
from botorch_calib.decisions.chance_constrained_search import (
    ChanceConstrainedCandidate,
    optimize_chance_constrained,
)
from botorch_calib.decisions.chance_constraints import (
    ChanceConstraint,
    joint_chance_constraints,
    joint_level,
)

__all__ = [
    "CertifiedSetExpansion",
    "ChanceConstrainedCandidate",
    "ChanceConstraint",
    "joint_chance_constraints",
    "joint_level",
    "optimize_chance_constrained",
]
