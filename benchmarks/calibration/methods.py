"""Methods of the suites on calibration: plain and calibrated, with common settings."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from benchmarks.framework.sequential import Method
from benchmarks.framework.strategies import AcquisitionStrategy, CalibratorFactory
from botorch_calib.calibration import LocalizedConformal, QuantileRecalibrator

ALPHA = 0.2

# Few starts suffice in two or three dimensions, and these suites take a hundred thousand steps.
CHEAP: dict[str, Any] = {"num_restarts": 2, "raw_samples": 256, "maxiter": 50, "incumbent": "mean"}


def cheap(name: str, calibrator: CalibratorFactory | None = None) -> Method:
    """Log expected improvement with the settings of these suites."""
    build = partial(AcquisitionStrategy, calibrator=calibrator, acquisition="ei", **CHEAP)
    return Method(name, build)


def compared() -> tuple[Method, ...]:
    return (
        cheap("bo"),
        cheap("locbo", partial(LocalizedConformal, alpha=ALPHA)),
        cheap("locbo_fixed", partial(LocalizedConformal, alpha=ALPHA, lengthscale=0.25)),
        cheap("ocbo", partial(QuantileRecalibrator, lengthscale=math.inf)),
    )
