"""The suites on calibration, and the small suite `smoke`."""

from __future__ import annotations

from benchmarks.calibration import (
    ackley,
    any_model,
    claims,
    conformal,
    methods,
    misspecified,
    noise_free,
    published_ocbo,
    radio,
    remedies,
    synthetic,
    tuning_tasks,
    understated,
    wellspecified,
)
from benchmarks.calibration.any_model_report import AnyModelReport
from benchmarks.calibration.area_report import AreaReport
from benchmarks.calibration.calibration_report import CalibrationReport
from benchmarks.calibration.coverage_report import CoverageReport
from benchmarks.calibration.radio_report import RadioReport
from benchmarks.calibration.tail_report import TailReport
from benchmarks.calibration.understated_report import UnderstatedReport
from benchmarks.framework.sequential import Method
from benchmarks.framework.strategies import RandomStrategy
from benchmarks.framework.suite import Suite

# Misspecified models, for which calibration is made, and well-specified ones, where it can only
# do harm.
MISSPECIFIED = Suite(
    name="misspecified",
    problems=misspecified.problems(),
    methods=methods.compared(),
    baseline="bo",
    seeds=range(10000, 10030),
    report=CoverageReport(subject="locbo", groups=misspecified.names_by_case()),
    protocol="misspecified",
)

# The same problems: forecasts by other kinds of model at random points.
ANY_MODEL = Suite(
    name="any_model",
    problems=misspecified.problems(),
    methods=any_model.methods(),
    baseline="default",
    seeds=range(10000, 10008),
    report=AnyModelReport(cases=misspecified.names_by_case(), methods=tuple(any_model.FORECASTERS)),
    protocol="any_model",
    archive=any_model.ARCHIVED,
)

# Reported standard errors that are too small: calibration and other remedies.
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
        largest="hartmann6",
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

# OCBO as in its experiments: on table 4 of its paper, then on the problems of other suites.
OCBO_TABLE_4 = Suite(
    name="ocbo_table_4",
    problems=synthetic.table_4(),
    methods=published_ocbo.compared_in_table_4(),
    baseline="bo",
    seeds=range(11000, 11020),
    report=AreaReport(
        subject="ocbo_loo_trained",
        groups={name: (name,) for name in synthetic.TABLE_4},
        published=synthetic.PUBLISHED_IN_TABLE_4,
    ),
    protocol="ocbo_table_4",
)

OCBO_LOO_TASKS = Suite(
    name="ocbo_loo_tasks",
    problems=tuning_tasks.problems(),
    methods=tuning_tasks.methods(),
    baseline="bo",
    seeds=range(10000, 10016),
    replicate=tuning_tasks.replicate,
    report=AreaReport(subject="ocbo_loo", groups=tuning_tasks.groups()),
    protocol="ocbo_loo_tasks",
)

OCBO_LOO_MISSPECIFIED = Suite(
    name="ocbo_loo_misspecified",
    problems=misspecified.problems(),
    methods=published_ocbo.compared(settings=methods.CHEAP),
    baseline="bo",
    seeds=range(10000, 10030),
    report=CoverageReport(subject="ocbo_loo", groups=misspecified.names_by_case()),
    protocol="ocbo_loo_misspecified",
)

OCBO_LOO_SYNTHETIC = Suite(
    name="ocbo_loo_synthetic",
    problems=synthetic.problems(),
    methods=published_ocbo.compared(),
    baseline="bo",
    seeds=range(10000, 10030),
    report=AreaReport(
        subject="ocbo_loo",
        groups={
            "twelve problems": tuple(name for name, *_ in synthetic.FUNCTIONS),
            "Alpine, 100 steps": (synthetic.LONG,),
        },
        published=synthetic.PUBLISHED,
    ),
    protocol="ocbo_loo_synthetic",
)

OCBO_LOO_ACKLEY = Suite(
    name="ocbo_loo_ackley",
    problems=published_ocbo.ackley_problems(),
    methods=published_ocbo.compared(),
    baseline="bo",
    seeds=range(10000, 10040),
    report=AreaReport(
        subject="ocbo_loo",
        groups={problem.name: (problem.name,) for problem in published_ocbo.ackley_problems()},
    ),
    protocol="ocbo_loo_ackley",
)

# The radio network of LOCBO's experiments, by the paper's text and by its published script.
RADIO_PUBLISHED = Suite(
    name="radio_published",
    problems=radio.by_the_text(),
    methods=radio.compared(),
    baseline="ei",
    seeds=range(10000, 10040),
    report=RadioReport(
        pairs=tuple(
            ("locbo", rival) for rival in ("ei", "locbo_global", "cbo", "ocbo", "ocbo_localized")
        ),
        secondary=tuple(
            (method, "ei") for method in ("locbo_global", "cbo", "ocbo", "ocbo_localized")
        ),
    ),
    protocol="radio_published",
    archive=radio.ARCHIVED,
)

RADIO_LEVELS = Suite(
    name="radio_levels",
    problems=(radio.corridors("text"), radio.by_the_script()),
    methods=radio.compared_at_further_levels(),
    baseline="ei",
    seeds=range(10000, 10040),
    report=RadioReport(
        pairs=tuple(
            (f"locbo{suffix}", rival)
            for suffix in map(radio.level_suffix, radio.FURTHER_LEVELS)
            for rival in ("ei", "ocbo", f"locbo_global{suffix}", f"cbo{suffix}")
        )
    ),
    protocol="radio_levels",
    archive=radio.ARCHIVED,
)

# Calibration of the tail above good values, without noise.
TAIL_ONLY = Suite(
    name="tail_only",
    problems=noise_free.problems(),
    methods=noise_free.methods(),
    baseline="plain",
    seeds=range(10000, 10040),
    replicate=noise_free.replicate,
    report=TailReport(
        subject="tail_only",
        families={"primary": ("plain", "whole"), "secondary": ("locbo", "ocbo")},
        groups=noise_free.names_by_group(),
    ),
    protocol="tail_only",
)

# Conformal Bayesian optimization, on a function without noise.
CONFORMAL = Suite(
    name="conformal",
    problems=(conformal.ackley(),),
    methods=conformal.methods(),
    baseline="bo",
    report=CalibrationReport(),
)

# A suite for tests, which runs in seconds.
SMOKE = Suite(
    name="smoke",
    problems=(ackley.small_noisy_ackley(),),
    methods=(Method("random", RandomStrategy),),
    baseline="random",
    report=CalibrationReport(),
    seeds=range(2),
)

SUITES = (
    MISSPECIFIED,
    ANY_MODEL,
    UNDERSTATED_NOISE,
    WELLSPECIFIED,
    OCBO_TABLE_4,
    OCBO_LOO_TASKS,
    OCBO_LOO_MISSPECIFIED,
    OCBO_LOO_SYNTHETIC,
    OCBO_LOO_ACKLEY,
    RADIO_PUBLISHED,
    RADIO_LEVELS,
    TAIL_ONLY,
    CONFORMAL,
    SMOKE,
)
