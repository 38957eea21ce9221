"""The suites on chance constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.decisions import (
    bbob_constrained,
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

# Violations of a limit under a stated probability: the present rule, the previous rule and others.
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


def _known(names: str) -> tuple[DecisionMethod, ...]:
    return tuple(_KNOWN[name] for name in names.split())


def _beside_an_oracle(
    name: str,
    problems: tuple[Any, ...],
    cases: Iterable[str],
    compared: tuple[DecisionMethod, ...],
    seeds: range,
    replicate: Callable[..., Any] = replicate,
    **report: Any,
) -> Suite[Any, Any]:
    """A suite with an oracle, on functions on which no rule was tuned."""
    settings = {"multiples": {"plain": 1.0, "wide": 1.5}, "hidden": (), **report}
    return Suite(
        name=name,
        problems=problems,
        methods=compared,
        baseline=compared[0].name,
        seeds=seeds,
        replicate=replicate,
        report=OracleReport(
            stated=round(1.0 - LEVEL, 12), cases=tuple(cases), primary="plain", **settings
        ),
        protocol=name,
        archive=ARCHIVED,
    )


FAULTS = _beside_an_oracle(
    "decisions_faults",
    faults_and_small_sets.tasks(faults_and_small_sets.FAULTS),
    faults_and_small_sets.FAULTS,
    (*_known("budget misses plain wide"), ORACLE),
    range(21000, 21006),
)
# Only small sets have given hyperparameters, which `budget_sharp` can correct.
SMALL_SETS = _beside_an_oracle(
    "decisions_small_sets",
    faults_and_small_sets.tasks(faults_and_small_sets.SMALL_SETS),
    faults_and_small_sets.SMALL_SETS,
    (*_known("budget_sharp budget misses plain wide"), ORACLE, RightProcess("right")),
    range(21000, 21006),
    yardsticks=("oracle", "right"),
)
# Small safe sets of random functions, which depend on the seed.
RANDOM = _beside_an_oracle(
    "decisions_random",
    random_functions.tasks(),
    random_functions.RELATIONS,
    (*_known("budget_sharp budget misses plain"), ORACLE, RightProcess("right")),
    range(22000, 22006),
    random_functions.replicate,
    yardsticks=("oracle", "right"),
)

# Real data and simulators, and the rules of other packages.
REAL = _beside_an_oracle(
    "real_limits",
    real_limits.TASKS,
    (task.outcome.name for task in real_limits.TASKS),
    (
        *_known("budget misses plain wide"),
        methods.SPREAD,
        methods.LeaveOneOut("loo"),
        MeanLimit("mean_limit"),
        NoiseFreeBound("safe_ucb", deviations=2.0),
        ORACLE,
    ),
    range(23000, 23010),
    real_limits.replicate,
)

# More inputs, two limits, four workers, few and many initial points.
FURTHER = _beside_an_oracle(
    "decisions_further",
    limits_and_workers.tasks(),
    limits_and_workers.CASES,
    limits_and_workers.METHODS,
    range(24000, 24003),
    limits_and_workers.replicate,
    page="decisions_further",
    multiples=limits_and_workers.factors(),
    hidden=("wide_2", "wide_3"),
    beside=(("workers", "d5"), ("both", "two_limits")),
)

# COCO's constrained problems with added noise.
BBOB_CONSTRAINED = _beside_an_oracle(
    "bbob_constrained",
    bbob_constrained.tasks(),
    bbob_constrained.CASES,
    bbob_constrained.methods(),
    range(25000, 25018),
    bbob_constrained.replicate,
    start_value=bbob_constrained.start_value,
)

SUITES = (BUDGET, FAULTS, SMALL_SETS, RANDOM, REAL, FURTHER, BBOB_CONSTRAINED)
