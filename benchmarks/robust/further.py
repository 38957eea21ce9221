"""Suite `robust_further`: problems of the paper that suite `robust` does not have.

They are the two portfolio problems, and Ackley with one decision as in the paper's table 1.
Contexts are those observed so far, with balls of radius 0.3 / sqrt(t); the loop, the noise (0.01,
which is next to nothing beside these values) and the rounds are those of suite `robust`.
"""

from __future__ import annotations

from benchmarks.problems import ContextualAckley2d
from benchmarks.robust import methods
from benchmarks.robust.methods import RobustBO
from benchmarks.robust.portfolio import PortfolioNormal, PortfolioUniform
from benchmarks.robust.replicate import ContextualTask

COMPARED = ("wdrbo", "wdrbo_exact", "erbo", "gp_ucb")


def tasks() -> tuple[ContextualTask, ...]:
    """The tasks of the suite."""
    return (
        ContextualTask("portfolio_normal", PortfolioNormal),
        ContextualTask("portfolio_uniform", PortfolioUniform),
        ContextualTask("ackley_one_decision", ContextualAckley2d),
    )


# Each is compared with `erbo`.
PRIMARY = ("wdrbo", "wdrbo_exact")


def compared() -> tuple[RobustBO, ...]:
    """Four of the methods of suite `robust`, with its settings."""
    return tuple(method for method in methods.compared() if method.name in COMPARED)
