"""The suites on contexts and robustness."""

from __future__ import annotations

from benchmarks.framework.suite import Suite
from benchmarks.robust import methods, shift
from benchmarks.robust.replicate import replicate, tasks
from benchmarks.robust.report import RobustReport
from benchmarks.robust.shift_report import ShiftReport

# Contexts from an unknown distribution.
ROBUST = Suite(
    name="robust",
    problems=tasks(),
    methods=methods.compared(),
    baseline="erbo",
    seeds=range(10000, 10015),
    replicate=replicate,
    report=RobustReport(),
    protocol="robust_contexts",
)

# Contexts that are shifted relative to their stated distribution.
ROBUST_SHIFT = Suite(
    name="robust_shift",
    problems=shift.tasks(),
    methods=shift.compared(),
    baseline="erbo",
    seeds=range(10000, 10012),
    replicate=shift.replicate,
    report=ShiftReport(),
    protocol="robust_shift",
)

SUITES = (ROBUST, ROBUST_SHIFT)
