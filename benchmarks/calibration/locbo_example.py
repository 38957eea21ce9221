"""LOCBO's example as it was published, and on the Gaussian processes of today: suite `locbo_full`.

Ackley in two dimensions on [-10, 10]^2, with noise that grows outwards and without, from five
points on one side. Each comes with three Gaussian processes, fitted at each of the first ten
evaluations and at every fifth one after:

* ``raw``: on the inputs as they are, with a prior of the lengthscale of mean 0.5: a fortieth of
  the box. So were the published gains measured.
* ``normalized``: the same priors on the unit cube, for which they are meant.
* ``default``: BoTorch's present kernel and priors, on the unit cube.

Outcomes are standardised throughout. The methods maximise log expected improvement over the
largest outcome. Beside ``bo``, the plain process:

* ``cbo``: weighted conformal, by the ratio of densities to where the plain process would query.
* ``ocbo`` and ``ocbo_l``: `QuantileRecalibrator` and the same with localization.
* ``locbo_inf`` and ``locbo``: `LocalizedConformal` without and with localization.
* ``..._stateful``: each outcome is scored once, by the model that chose its point, as published;
  the others replay all outcomes with the present model.
* ``..._published``: stateful, with the published scores, steps and kernels. The others have the
  settings of the package.

The lengthscale of localization is a quarter of the box's width, the published 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from botorch.models import SingleTaskGP
from torch import Tensor

from benchmarks.calibration.ackley import heteroscedastic_ackley, noise_free_ackley
from benchmarks.calibration.methods import ALPHA
from benchmarks.calibration.stateful import StatefulStrategy
from benchmarks.calibration.study_methods import SETTINGS, ConformalStrategy
from benchmarks.framework.sequential import Method, Problem, Strategy
from benchmarks.framework.strategies import AcquisitionStrategy
from benchmarks.framework.surrogates import DefaultPriors, Refitted, fit_gp
from botorch_calib.calibration import (
    Calibrator,
    GaussianScore,
    LocalizedConformal,
    QuantileRecalibrator,
)

# Widths of the box.
LENGTHSCALE = 0.25

# The published settings of the learners but for the kernel.
PUBLISHED: dict[str, Any] = {
    "step_size": 5e-3,
    "step_decay": 0.05,
    "regularization": 4e-3,
    "score": GaussianScore(),
    "tails": "gaussian",
}
# Scale of the kernel of OCBO-L and of LOCBO.
OCBO_SCALE, LOCBO_SCALE = 5.0, 4.0


# ------------------------------------------------------------ Gaussian processes and problems


@dataclass(frozen=True)
class RawInputs(Refitted):
    """A GP with priors for the unit cube on inputs as they are."""

    def fit(self, X: Tensor, Y: Tensor, bounds: Tensor) -> SingleTaskGP:
        return fit_gp(X, Y, bounds, normalized=False)


GPS: dict[str, Refitted] = {
    "raw": RawInputs(every=5, at_first=10),
    "normalized": Refitted(every=5, at_first=10),
    "default": DefaultPriors(every=5, at_first=10),
}
NOISY, NOISE_FREE = "heteroscedastic", "noise_free"


def example(function: str, gp: str) -> Problem:
    """Ackley with or without noise, with one of the Gaussian processes."""
    problem = {NOISY: heteroscedastic_ackley, NOISE_FREE: noise_free_ackley}[function]()
    return replace(problem, name=f"{function}_{gp}", surrogate=GPS[gp])


def problems() -> tuple[Problem, ...]:
    return tuple(example(function, gp) for function in (NOISY, NOISE_FREE) for gp in GPS)


# ------------------------------------------------------------ methods


def localized(
    problem: Problem,
    seed: int,
    strategy: Callable[..., Strategy],
    calibrator: Callable[..., Calibrator],
    lengthscale: float,
    **settings: Any,
) -> Strategy:
    """A strategy whose calibrator has a lengthscale in widths of the box.

    Calibrators take it in the units that the Gaussian process sees.
    """
    lower, upper = problem.bounds[0]
    width = upper - lower if isinstance(problem.surrogate, RawInputs) else 1.0
    made = partial(calibrator, lengthscale=width * lengthscale)
    return strategy(problem, seed, calibrator=made, **settings)


def calibrated(
    name: str,
    calibrator: Callable[..., Calibrator],
    lengthscale: float = LENGTHSCALE,
    strategy: Callable[..., Strategy] = AcquisitionStrategy,
) -> Method:
    """A method with a calibrator whose lengthscale is in widths of the box."""
    build = partial(
        localized, strategy=strategy, calibrator=calibrator, lengthscale=lengthscale, **SETTINGS
    )
    return Method(name, build)


def locbo_published(name: str, alpha: float = ALPHA, lengthscale: float = LENGTHSCALE) -> Method:
    """LOCBO with the published settings, stateful."""
    calibrator = partial(LocalizedConformal, alpha=alpha, scale=LOCBO_SCALE, **PUBLISHED)
    return calibrated(name, calibrator, lengthscale, StatefulStrategy)


def compared() -> tuple[Method, ...]:
    conformal = partial(LocalizedConformal, alpha=ALPHA)
    ours: dict[str, tuple[Callable[..., Calibrator], float]] = {
        "ocbo": (QuantileRecalibrator, math.inf),
        "ocbo_l": (QuantileRecalibrator, LENGTHSCALE),
        "locbo_inf": (conformal, math.inf),
        "locbo": (conformal, LENGTHSCALE),
    }
    replayed = [calibrated(name, *made) for name, made in ours.items()]
    stateful = [
        calibrated(f"{name}_stateful", *made, strategy=StatefulStrategy)
        for name, made in ours.items()
    ]
    ocbo_published = partial(QuantileRecalibrator, scale=OCBO_SCALE, **PUBLISHED)
    return (
        Method("bo", partial(AcquisitionStrategy, **SETTINGS)),
        Method("cbo", partial(ConformalStrategy, **SETTINGS)),
        *replayed,
        *stateful,
        calibrated("ocbo_l_published", ocbo_published, strategy=StatefulStrategy),
        locbo_published("locbo_published"),
    )
