"""Methods of the suites on calibration: plain and calibrated, and the settings that they share."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from benchmarks.framework.sequential import Method
from benchmarks.framework.strategies import AcquisitionStrategy, CalibratorFactory
from botorch_calib.calibration import (
    GaussianScore,
    LocalizedConformal,
    OnlineConformal,
    QuantileRecalibrator,
)


def calibrated_bo(name: str, calibrator: CalibratorFactory) -> Method:
    """Log expected improvement of the GP calibrated by ``calibrator``."""
    return Method(name, partial(AcquisitionStrategy, calibrator=calibrator))


def locbo() -> Method:
    """Localized calibration with the package's defaults."""
    return calibrated_bo("locbo", partial(LocalizedConformal, alpha=0.2, lengthscale=0.25))


def locbo_global() -> Method:
    """Calibration with one threshold for all points."""
    return calibrated_bo("locbo_global", partial(OnlineConformal, alpha=0.2))


def locbo_published() -> Method:
    """Localized calibration with the settings of the paper.

    Its length scale of 5 on a box of width 20 is 0.25 in unit-cube units, and its thresholds
    live on the scale of p-values.
    """
    calibrator = partial(
        LocalizedConformal,
        alpha=0.2,
        lengthscale=0.25,
        scale=5.0,
        step_size=5e-3,
        step_decay=0.05,
        regularization=4e-3,
        score=GaussianScore(),
        tails="gaussian",
    )
    return calibrated_bo("locbo_published", calibrator)


# Below, the suites that compare calibrators on many problems.

ALPHA = 0.2

# These suites take a hundred thousand steps, in two or three dimensions.
CHEAP: dict[str, Any] = {
    "num_restarts": 2,
    "raw_samples": 256,
    "maxiter": 50,
    "incumbent": "mean",
}


def cheap(name: str, calibrator: CalibratorFactory | None = None) -> Method:
    """Log expected improvement with the settings of these suites."""
    build = partial(AcquisitionStrategy, calibrator=calibrator, acquisition="ei", **CHEAP)
    return Method(name, build)


# What the suites on online calibrated Bayesian optimization compare: the plain GP, every quantile
# recalibrated (the paper's method), the same with localization, and a localized interval. Where
# they are localized, the lengthscale is the package's choice.
RECALIBRATION: dict[str, CalibratorFactory | None] = {
    "bo": None,
    "ocbo": QuantileRecalibrator,
    "ocbo_l": partial(QuantileRecalibrator, lengthscale="auto"),
    "locbo": partial(LocalizedConformal, alpha=ALPHA),
}


def compared() -> tuple[Method, ...]:
    """The plain GP, localized calibration (tuned and with the paper's lengthscale), and OCBO."""
    return (
        cheap("bo"),
        cheap("locbo", partial(LocalizedConformal, alpha=ALPHA)),
        cheap("locbo_fixed", partial(LocalizedConformal, alpha=ALPHA, lengthscale=0.25)),
        cheap("ocbo", partial(QuantileRecalibrator, lengthscale=math.inf)),
    )
