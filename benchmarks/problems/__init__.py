"""Test functions that the suites alone use; those of tutorials and guides are in the package."""

from benchmarks.problems.contextual_suite import (
    ContextualAckley,
    ContextualHartmann6,
    ModifiedBranin,
    ThreeHumpCamel,
)

__all__ = ["ContextualAckley", "ContextualHartmann6", "ModifiedBranin", "ThreeHumpCamel"]
