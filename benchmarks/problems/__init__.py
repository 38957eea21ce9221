"""Test functions of the suites. The test functions of tutorials and guides are in the package."""

from benchmarks.problems.contextual_suite import (
    ContextualAckley,
    ContextualHartmann6,
    ModifiedBranin,
    ThreeHumpCamel,
)

__all__ = ["ContextualAckley", "ContextualHartmann6", "ModifiedBranin", "ThreeHumpCamel"]
