"""Methods of the suites that compare calibrators, all with the same cheap optimiser."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from benchmarks.framework.sequential import Method
from benchmarks.framework.strategies import AcquisitionStrategy, CalibratorFactory
from botorch_calib.calibration import LocalizedConformal, QuantileRecalibrator

ALPHA = 0.2

# These suites take a hundred thousand steps, in two or three dimensions.
CHEAP: dict[str, Any] = {
    "num_restarts": 2,
    "raw_samples": 256,
    "maxiter": 50,
    "incumbent": "mean",
}


def cheap(
    name: str, calibrator: CalibratorFactory | None = None, acquisition: str = "ei"
) -> Method:
    """A method with the settings of these suites."""
    settings = {"calibrator": calibrator, "acquisition": acquisition, **CHEAP}
    return Method(name, partial(AcquisitionStrategy, **settings))


def plain_bo() -> Method:
    """The plain GP."""
    return cheap("bo")


def locbo() -> Method:
    """Localized calibration with the package's defaults."""
    return cheap("locbo", partial(LocalizedConformal, alpha=ALPHA))


def locbo_fixed() -> Method:
    """Localized calibration with one lengthscale, that of the paper."""
    return cheap("locbo_fixed", partial(LocalizedConformal, alpha=ALPHA, lengthscale=0.25))


def ocbo() -> Method:
    """Quantile recalibration without localization."""
    return cheap("ocbo", partial(QuantileRecalibrator, lengthscale=math.inf))


def compared() -> tuple[Method, ...]:
    """The methods that these suites compare, the baseline first."""
    return (plain_bo(), locbo(), locbo_fixed(), ocbo())
