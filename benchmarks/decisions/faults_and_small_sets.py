"""The tasks of suites `decisions_faults` and `decisions_small_sets`.

The tasks are as in `tasks` but with other functions, on which no constant of a rule was tuned.

Functions by the name of the outcome; the other function is the objective, maximised:

* ``levy`` (3-d, on [-5, 5]^3) has many local optima. Dixon-Price is on [-2, 2]^3.
* ``dixon_price`` (5-d, on [-2, 2]^5) is a curved valley, steep at the corners. Levy is on the same
  box; on a wider box even the oracle stays at local optima.

Cases of `decisions_faults` have 5 initial points per dimension and 100 rounds. Half of the box is
safe in the middle of the run. The outcome's Gaussian process is `SingleTaskGP` at its defaults,
fitted in every fifth round. Unless stated otherwise, the noise is Gaussian with standard
deviation 0.3.

* ``control``: no fault.
* ``student_t``: Student's t noise with 2.5 degrees of freedom and scale 0.3.
* ``jump``: in the second half of the run the outcome is higher by 0.6.
* ``outliers``: one outcome in 20 has noise with standard deviation 2.
* ``trend``: the outcome rises linearly, by 0.6 over the run.
* ``grid``: outcomes are rounded to a grid of width 0.5 that contains the limit.

Cases of `decisions_small_sets` have 4 initial points per dimension and 120 rounds. Hyperparameters
are given and right, except for a noise variance that is ten times too small. The noise is Gaussian
with standard deviation 0.5.

* ``quarter``: a quarter of the box is safe.
* ``tenth``: a tenth of the box is safe.
* ``quarter_2d``: a quarter of the box is safe. Functions have two inputs, hence 8 initial points.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from botorch.test_functions.base import BaseTestProblem
from botorch.test_functions.synthetic import DixonPrice, Levy

from benchmarks.decisions.tasks import Case, DecisionTask, Standardized
from benchmarks.framework.landscapes import GaussianNoise, OutlierNoise, StudentNoise
from benchmarks.framework.surrogates import DefaultPriors

NOISE, FITTED = GaussianNoise(0.3, 0.3), DefaultPriors(every=5)


def _on(function: Callable[..., BaseTestProblem], end: float, dim: int) -> Standardized:
    return Standardized(partial(function, dim=dim, bounds=[(-end, end)] * dim), dim)


FUNCTIONS: dict[str, tuple[Standardized, Standardized]] = {
    "levy": (_on(Levy, 5.0, dim=3), _on(DixonPrice, 2.0, dim=3)),
    "dixon_price": (_on(DixonPrice, 2.0, dim=5), _on(Levy, 2.0, dim=5)),
}
# Functions of two inputs
FLAT: dict[str, tuple[Standardized, Standardized]] = {
    "levy": (_on(Levy, 5.0, dim=2), _on(DixonPrice, 2.0, dim=2)),
    "dixon_price": (_on(DixonPrice, 2.0, dim=2), _on(Levy, 2.0, dim=2)),
}


def _small(safe_share: float) -> Case:
    return Case(
        GaussianNoise(0.5, 0.5),
        safe_share=safe_share,
        noise_factor=0.1,
        points_per_dimension=4,
        num_rounds=120,
    )


FAULTS: dict[str, Case] = {
    "control": Case(NOISE, fitted=FITTED),
    "student_t": Case(StudentNoise(2.5, 0.3), fitted=FITTED),
    "jump": Case(NOISE, jump=0.6, fitted=FITTED),
    "outliers": Case(OutlierNoise(0.3, 2.0, 0.05), fitted=FITTED),
    "trend": Case(NOISE, drift=0.6, fitted=FITTED),
    "grid": Case(NOISE, grid=0.5, fitted=FITTED),
}
SMALL_SETS: dict[str, Case] = {
    "quarter": _small(0.25),
    "tenth": _small(0.1),
    "quarter_2d": _small(0.25),
}


def tasks(cases: Mapping[str, Case]) -> tuple[DecisionTask, ...]:
    return tuple(
        kind.task(f"{function}_{case}", *pair)
        for case, kind in cases.items()
        for function, pair in (FLAT if case.endswith("2d") else FUNCTIONS).items()
    )
