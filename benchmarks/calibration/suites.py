"""The suites on calibration, and the small one that tries things out."""

from __future__ import annotations

from benchmarks.calibration import (
    ackley,
    any_model,
    claims,
    locbo_example,
    methods,
    misspecified,
    ocbo_designs,
    ocbo_tasks,
    remedies,
    rivals,
    study_methods,
    synthetic,
    tuning_tables,
    understated,
    wellspecified,
)
from benchmarks.calibration.any_model_report import AnyModelReport
from benchmarks.calibration.calibration_report import CalibrationReport
from benchmarks.calibration.coverage_report import CoverageReport
from benchmarks.calibration.locbo_report import PublishedReport
from benchmarks.calibration.ocbo_report import OcboReport
from benchmarks.calibration.rivals_report import RivalsReport
from benchmarks.calibration.understated_report import UnderstatedReport
from benchmarks.framework import strategies
from benchmarks.framework.results import Run
from benchmarks.framework.suite import Suite

# The published example in full: with the Gaussian process of the paper and those of today, and all
# calibrators, replayed and stateful.
LOCBO_FULL = Suite(
    name="locbo_full",
    problems=locbo_example.problems(),
    methods=locbo_example.compared(),
    baseline="bo",
    seeds=range(10000, 10040),
    report=PublishedReport(
        primary=tuple(
            (
                Run(f"{locbo_example.NOISY}_{gp}", "locbo_published"),
                Run(f"{locbo_example.NOISY}_{gp}", "bo"),
            )
            for gp in locbo_example.GPS
        ),
        others=tuple(
            (Run(f"{function}_{gp}", "bo"), Run(f"{function}_raw", "bo"))
            for function in (locbo_example.NOISY, locbo_example.NOISE_FREE)
            for gp in ("normalized", "default")
        ),
    ),
    protocol="locbo_full",
)

# The regime that calibration is for, and the one in which it can only do harm.
MISSPECIFIED = Suite(
    name="misspecified",
    problems=misspecified.problems(),
    methods=methods.compared(),
    baseline="bo",
    seeds=range(10000, 10030),
    report=CoverageReport(
        subject="locbo",
        groups=misspecified.names_by_case(),
    ),
    protocol="misspecified",
)

# The same problems, forecast by other kinds of model at random points.
ANY_MODEL = Suite(
    name="any_model",
    problems=misspecified.problems(),
    methods=any_model.methods(),
    baseline="default",
    seeds=range(10000, 10008),
    report=AnyModelReport(
        cases=misspecified.names_by_case(),
        methods=tuple(any_model.FORECASTERS),
    ),
    protocol="any_model",
    archive=any_model.ARCHIVED,
)

# Reported standard errors that are too small: calibration beside what else a user can do.
UNDERSTATED_NOISE = Suite(
    name="understated_noise",
    problems=understated.problems(),
    methods=remedies.compared(),
    baseline="plain",
    seeds=range(10000, 10100),
    replicate=claims.replicate,
    report=UnderstatedReport(
        primary=("recalibrated", "localized"),
        control="refit",
        baseline="plain",
        former=tuple(misspecified.FUNCTIONS),
    ),
    protocol="understated_noise",
    archive=claims.ARCHIVED,
)

WELLSPECIFIED = Suite(
    name="wellspecified",
    problems=wellspecified.problems(),
    methods=methods.compared(),
    baseline="bo",
    seeds=range(10000, 10100),
    report=CoverageReport(
        subject="locbo",
        groups={
            "true hyperparameters": ("matern_1d", "matern_2d", "matern_3d"),
            "fitted hyperparameters": ("matern_2d_refitted",),
        },
        endpoint="log10 of regret, recommended",
    ),
    protocol="wellspecified",
)

# Synthetic functions without noise.
CALIBRATION = Suite(
    name="calibration",
    problems=synthetic.problems(),
    methods=study_methods.study_methods(),
    baseline="bo",
    report=CalibrationReport(),
)

# What online calibrated Bayesian optimization owes to its initial points, and a long run.
OCBO_DESIGNS = Suite(
    name="ocbo_designs",
    problems=ocbo_designs.problems(),
    methods=ocbo_designs.methods(),
    baseline="bo",
    seeds=range(10000, 10012),
    report=OcboReport(
        subject="ocbo",
        groups={
            "Forrester, six designs": tuple(map(ocbo_designs.forrester_name, ocbo_designs.DESIGNS)),
            "Alpine, 100 steps": (ocbo_designs.ALPINE,),
        },
    ),
    protocol="ocbo_designs",
)

# Its hyperparameter experiments.
OCBO_TASKS = Suite(
    name="ocbo_tasks",
    problems=ocbo_tasks.problems(),
    methods=ocbo_tasks.methods(),
    baseline="bo",
    seeds=range(10000, 10016),
    replicate=ocbo_tasks.replicate,
    report=OcboReport(subject="ocbo", groups=ocbo_tasks.groups()),
    protocol="ocbo_tasks",
)

# Clients' own methods beside ours, on tuning tasks.
RIVALS = Suite(
    name="rivals",
    problems=tuning_tables.problems(),
    methods=rivals.methods(),
    baseline="random",
    seeds=range(11000, 11008),
    report=RivalsReport(
        pairs=(("optuna_ours", "optuna_gp"), ("optuna_ours", "optuna_tpe"), ("ax_ours", "ax"))
    ),
    protocol="rivals",
)

# Runs in seconds: for trying out a back end, and for the tests.
SMOKE = Suite(
    name="smoke",
    problems=(ackley.small_noisy_ackley(),),
    methods=(strategies.random_search(),),
    baseline="random",
    report=CalibrationReport(),
    seeds=range(2),
)

SUITES = (
    LOCBO_FULL,
    MISSPECIFIED,
    ANY_MODEL,
    UNDERSTATED_NOISE,
    WELLSPECIFIED,
    CALIBRATION,
    OCBO_DESIGNS,
    OCBO_TASKS,
    RIVALS,
    SMOKE,
)
