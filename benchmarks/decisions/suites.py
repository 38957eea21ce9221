"""The suite on chance constraints."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.decisions import methods
from benchmarks.decisions.analysis import ARCHIVED
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

# The budget rule, with the rule before it among its rivals, whose replicates are those of
# `DECISIONS`.
BUDGET = replace(
    DECISIONS,
    name="decisions_budget",
    methods=methods.budgeted(),
    baseline="budget_sharp",
    protocol="decisions_budget",
)

SUITES = (DECISIONS, BUDGET)
