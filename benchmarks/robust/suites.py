"""The suite on contexts and robustness."""

from __future__ import annotations

from benchmarks.framework.suite import Suite
from benchmarks.robust import methods
from benchmarks.robust.replicate import replicate, tasks
from benchmarks.robust.report import RobustReport

# Contexts that the environment draws, from a distribution that is not known.
ROBUST = Suite(
    name="robust",
    problems=tasks(),
    methods=methods.compared(),
    baseline="erbo",
    seeds=range(15),
    replicate=replicate,
    report=RobustReport(),
)

SUITES = (ROBUST,)
