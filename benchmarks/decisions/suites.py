"""The suites on chance constraints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.decisions import (
    faults_and_small_sets,
    limits_and_workers,
    methods,
    random_functions,
    real_limits,
)
from benchmarks.decisions.analysis import ARCHIVED
from benchmarks.decisions.oracle import Oracle, RightProcess
from benchmarks.decisions.oracle_report import OracleReport
from benchmarks.decisions.replicate import DecisionMethod, replicate
from benchmarks.decisions.report import DecisionReport
from benchmarks.decisions.tasks import CASES, LEVEL, tasks
from benchmarks.decisions.usual_rules import MeanLimit, NoiseFreeBound
from benchmarks.framework.suite import Suite

# Certified choices under a stated probability, judged by how often they violate the limit: the
# present rule, with the rule before it among its rivals.
BUDGET = Suite(
    name="decisions_budget",
    problems=tasks(),
    methods=methods.budgeted(),
    baseline="budget_sharp",
    seeds=range(20000, 20006),
    replicate=replicate,
    report=DecisionReport(
        stated=round(1.0 - LEVEL, 12),
        cases=tuple(CASES),
        primary="plain",
        multiples=methods.factors(),
        hidden=tuple(method.name for method in methods.multiples()),
    ),
    protocol="decisions_budget",
    archive=ARCHIVED,
)


ORACLE = Oracle("oracle")
_KNOWN = {method.name: method for method in methods.budgeted()}


def _untuned(
    name: str,
    problems: tuple[Any, ...],
    cases: Iterable[str],
    names: Sequence[str],
    knowing: tuple[DecisionMethod, ...] = (ORACLE,),
) -> Suite[Any, Any]:
    """The same rule on functions that nobody tuned it on, and an oracle."""
    return Suite(
        name=name,
        problems=problems,
        methods=(*(_KNOWN[name] for name in names), *knowing),
        baseline=names[0],
        seeds=range(21000, 21006),
        replicate=replicate,
        report=OracleReport(
            stated=round(1.0 - LEVEL, 12),
            cases=tuple(cases),
            primary="plain",
            multiples={"plain": 1.0, "wide": 1.5},
            hidden=(),
            yardsticks=tuple(method.name for method in knowing),
        ),
        protocol=name,
        archive=ARCHIVED,
    )


FAULTS = _untuned(
    "decisions_faults",
    faults_and_small_sets.tasks(faults_and_small_sets.FAULTS),
    faults_and_small_sets.FAULTS,
    ("budget", "misses", "plain", "wide"),
)
# Hyperparameters are given in small sets alone, so that there is something to correct.
SMALL_SETS = _untuned(
    "decisions_small_sets",
    faults_and_small_sets.tasks(faults_and_small_sets.SMALL_SETS),
    faults_and_small_sets.SMALL_SETS,
    ("budget_sharp", "budget", "misses", "plain", "wide"),
    (ORACLE, RightProcess("right")),
)
# Small safe sets of random functions, which each seed draws anew.
RANDOM = replace(
    _untuned(
        "decisions_random",
        random_functions.tasks(),
        random_functions.RELATIONS,
        ("budget_sharp", "budget", "misses", "plain"),
        (ORACLE, RightProcess("right")),
    ),
    seeds=range(22000, 22006),
    replicate=random_functions.replicate,
)

# Problems that others made, beside how other packages treat a limit.
REAL = Suite(
    name="real_limits",
    problems=real_limits.TASKS,
    methods=(
        *(_KNOWN[name] for name in ("budget", "misses", "plain", "wide")),
        methods.SPREAD,
        methods.LeaveOneOut("loo"),
        MeanLimit("mean_limit"),
        NoiseFreeBound("safe_ucb", deviations=2.0),
        ORACLE,
    ),
    baseline="budget",
    seeds=range(23000, 23010),
    replicate=real_limits.replicate,
    report=OracleReport(
        stated=round(1.0 - LEVEL, 12),
        cases=tuple(task.outcome.name for task in real_limits.TASKS),
        primary="plain",
        multiples={"plain": 1.0, "wide": 1.5},
        hidden=(),
        yardsticks=("oracle",),
    ),
    protocol="real_limits",
    archive=ARCHIVED,
)

# More inputs, two limits, four workers with late outcomes, few and many initial points.
FURTHER = Suite(
    name="decisions_further",
    problems=limits_and_workers.tasks(),
    methods=limits_and_workers.METHODS,
    baseline="budget",
    seeds=range(24000, 24003),
    replicate=limits_and_workers.replicate,
    report=OracleReport(
        page="decisions_further",
        stated=round(1.0 - LEVEL, 12),
        cases=tuple(limits_and_workers.CASES),
        primary="plain",
        multiples=limits_and_workers.factors(),
        hidden=("wide_2", "wide_3"),
        yardsticks=("oracle",),
        beside=(("workers", "d5"), ("both", "two_limits")),
    ),
    protocol="decisions_further",
    archive=ARCHIVED,
)

SUITES = (BUDGET, FAULTS, SMALL_SETS, RANDOM, REAL, FURTHER)
