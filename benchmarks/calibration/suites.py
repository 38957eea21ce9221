"""The suites on calibration, and the small one that tries things out."""

from __future__ import annotations

from benchmarks.calibration import (
    ackley,
    any_model,
    claims,
    conformal,
    methods,
    misspecified,
    noise_free,
    remedies,
    understated,
    wellspecified,
)
from benchmarks.calibration.any_model_report import AnyModelReport
from benchmarks.calibration.calibration_report import CalibrationReport
from benchmarks.calibration.coverage_report import CoverageReport
from benchmarks.calibration.tail_report import TailReport
from benchmarks.calibration.understated_report import UnderstatedReport
from benchmarks.framework import strategies
from benchmarks.framework.suite import Suite

# The regime that calibration is for, and the one in which it can only do harm.
MISSPECIFIED = Suite(
    name="misspecified",
    problems=misspecified.problems(),
    methods=methods.compared(),
    baseline="bo",
    seeds=range(10000, 10030),
    report=CoverageReport(subject="locbo", groups=misspecified.names_by_case()),
    protocol="misspecified",
)

# The same problems, forecast by other kinds of model at random points.
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

# Calibration beyond good values alone, without noise.
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
    MISSPECIFIED,
    ANY_MODEL,
    UNDERSTATED_NOISE,
    WELLSPECIFIED,
    TAIL_ONLY,
    CONFORMAL,
    SMOKE,
)
