"""The tasks of suites `decisions_faults` and `decisions_small_sets`, on functions of their own.

Everything is as in `tasks`, but no constant of any rule was chosen on these functions.

Functions, by the name of the limited one, each with the other as the objective, maximised:

* ``levy`` (3-d, on [-5, 5]^3): many local optima. Dixon-Price is on [-2, 2]^3.
* ``dixon_price`` (5-d, on [-2, 2]^5): a curved valley, steep at the corners. Levy is on the same
  box, on a wider one of which the oracle, too, stays at local optima.

Cases of `decisions_faults`, of 100 rounds after 5 points for each dimension: half of the box is
safe at half time, and the outcome's Gaussian process is `SingleTaskGP` at its defaults, fitted in
every fifth round. Where nothing else is said, noise is Gaussian and has a deviation of 0.3.

* ``control``: no fault.
* ``student_t``: Student's t noise with 2.5 degrees of freedom, times 0.3.
* ``jump``: after half time the outcome is higher by 0.6.
* ``outliers``: one outcome in 20 has noise with a deviation of 2.
* ``trend``: the outcome rises steadily, by 0.6 over the rounds.
* ``grid``: outcomes are rounded to multiples of 0.5 from the limit, which they may reach.

Cases of `decisions_small_sets`, of 120 rounds after 4 points for each dimension: hyperparameters
are given, but for a noise variance that is ten times too small. Gaussian noise of 0.5.

* ``quarter``: a quarter of the box is safe.
* ``tenth``: a tenth of it.
* ``quarter_2d``: a quarter of it, with two inputs for each function, so that 8 points are known.
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
# With two inputs
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
