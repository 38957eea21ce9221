"""Test functions that the suites alone use; those of tutorials and guides are in the package."""

from benchmarks.problems.contextual_suite import (
    ContextualAckley,
    ContextualAckley2d,
    ContextualHartmann6,
    ModifiedBranin,
    ThreeHumpCamel,
)
from benchmarks.problems.one_sided_design import one_sided_initial_design
from benchmarks.problems.radio_corridors import RadioCorridors

__all__ = [
    "ContextualAckley",
    "ContextualAckley2d",
    "ContextualHartmann6",
    "ModifiedBranin",
    "RadioCorridors",
    "ThreeHumpCamel",
    "one_sided_initial_design",
]
