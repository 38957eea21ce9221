"""The suites on chance constraints."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.decisions import faults, methods
from benchmarks.decisions.analysis import ARCHIVED
from benchmarks.decisions.faults_report import FaultsReport
from benchmarks.decisions.oracle import Oracle
from benchmarks.decisions.replicate import replicate
from benchmarks.decisions.report import DecisionReport
from benchmarks.decisions.tasks import CASES, LEVEL, tasks
from benchmarks.framework.suite import Suite

# Certified choices under a stated probability, judged by how often they violate the limit.
DECISIONS = Suite(
    name="decisions",
    problems=tasks(),
    methods=methods.compared(),
    baseline="recalibrated",
    seeds=range(10000, 10050),
    replicate=replicate,
    report=DecisionReport(
        stated=round(1.0 - LEVEL, 12),
        cases=tuple(CASES),
        primary="plain",
        multiples=methods.factors(),
        hidden=tuple(method.name for method in methods.multiples()),
    ),
    protocol="chance_constraints",
    archive=ARCHIVED,
)

# The budget rule, with the rule before it among its rivals.
BUDGET = replace(
    DECISIONS,
    name="decisions_budget",
    methods=methods.budgeted(),
    baseline="budget",
    seeds=range(12000, 12050),
    protocol="decisions_budget",
)

# The same rule where nobody tuned it, and an oracle.
FAULTS = Suite(
    name="decisions_faults",
    problems=faults.tasks(),
    methods=(
        *(m for m in methods.budgeted() if m.name in ("budget", "plain", "wide")),
        Oracle("oracle"),
    ),
    baseline="budget",
    seeds=range(13000, 13030),
    replicate=replicate,
    report=FaultsReport(
        stated=round(1.0 - LEVEL, 12),
        cases=tuple(faults.CASES),
        primary="plain",
        multiples={"plain": 1.0, "wide": 1.5},
        hidden=(),
        oracle="oracle",
    ),
    protocol="decisions_faults",
    archive=ARCHIVED,
)

SUITES = (DECISIONS, BUDGET, FAULTS)
