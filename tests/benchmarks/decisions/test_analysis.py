"""Scores of runs, against numbers computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.decisions import analysis
from benchmarks.decisions.analysis import ViolationGap, matched_reward
from benchmarks.framework.replicate_result import Result, seed_means
from tests.benchmarks.made_up_results import result_with

OFF, FINE, BAD = "off", "fine", "bad"


def run(
    rounds: Sequence[str],
    seed: int = 0,
    reward: float = 0.0,
    recommended: tuple[float, float] | None = None,
) -> Result:
    """A run whose rounds are certified and violated, certified and fine, or not certified.

    The limit is 1, and the stated quantile 0.5.
    """
    num = len(rounds)
    value, probability = (None, None) if recommended is None else recommended
    return result_with(
        problem="problem",
        method="method",
        seed=seed,
        num_initial=2,
        f=[100.0, 100.0, *([reward] * num)],
        fit_seconds=[0.25] * num,
        acquisition_seconds=[0.25] * num,
        extras={
            "certified": [float(kind != OFF) for kind in rounds],
            # A round that is not certified may exceed the limit, too, but does not count.
            "violated": [float(kind != FINE) for kind in rounds],
            "outcome": [{FINE: 0.7, BAD: 1.5, OFF: 2.0}[kind] for kind in rounds],
            "quantile": [0.5 if i % 2 else 0.9 for i in range(num)],
            "probability": [0.1 * i for i in range(num)],
            "best_value": [3.0],
            "recommended_value": [value],
            "recommended_probability": [probability],
        },
        versions={"python": "3"},
    )


EXAMPLE = run([BAD, FINE, OFF, FINE, OFF], reward=2.0)
NOTHING = run([OFF, OFF])


def test_rates_are_over_certified_rounds() -> None:
    assert analysis.violation_rate(EXAMPLE) == pytest.approx(1 / 3)
    assert analysis.certified_share(EXAMPLE) == pytest.approx(3 / 5)
    # Outcomes 1.5, 0.7, 0.7 against quantiles 0.9, 0.5, 0.5.
    assert analysis.miss_rate(EXAMPLE) == pytest.approx(1.0)
    assert analysis.true_violation_rate(EXAMPLE) == pytest.approx((0.0 + 0.1 + 0.3) / 3)
    assert ViolationGap(0.1)(EXAMPLE) == pytest.approx(1 / 3 - 0.1)


def test_seeds_are_averaged_over_the_functions_that_all_have_them() -> None:
    first = [run([FINE], seed, reward=seed) for seed in (1, 2, 3)]
    second = [run([FINE], seed, reward=10.0) for seed in (2, 3, 4)]
    case = [{"method": first}, {"method": second}]
    assert seed_means(case, "method", analysis.reward) == {2: 6.0, 3: 6.5}
    assert seed_means(case, "other", analysis.reward) == {}
    # With weights: 3 certified rounds with a rate of 1/3, and one with a rate of 1.
    case = [{"method": [run([BAD, FINE, FINE])]}, {"method": [run([BAD, OFF])]}]
    rates = seed_means(case, "method", analysis.violation_rate, analysis.certified_rounds)
    assert rates == {0: pytest.approx(0.5)}
    gaps = seed_means(case, "method", ViolationGap(0.1), analysis.certified_rounds)
    assert gaps == {0: pytest.approx((3 * (1 / 3 - 0.1) + 0.9) / 4)}
    # If nothing is certified, all runs have equal weights.
    idle = [{"method": [NOTHING]}, {"method": [run([OFF])]}]
    gaps = seed_means(idle, "method", ViolationGap(0.1), analysis.certified_rounds)
    assert gaps == {0: pytest.approx(0.1)}
    # A function without a value is left out for this seed only.
    case = [{"method": [run([OFF], 1), run([FINE], 2)]}, {"method": [EXAMPLE, run([BAD], 1)]}]
    assert seed_means(case, "method", analysis.miss_rate) == {1: 1.0}


def test_pooled_rates() -> None:
    runs = [run([BAD, BAD, FINE, FINE], 0), run([BAD] + [FINE] * 3, 1), run([OFF, BAD, FINE], 2)]
    rate, low, high = analysis.pooled_rate(runs)
    assert rate == pytest.approx(4 / 10)
    # Residuals 2 - 1.6, 1 - 1.6 and 1 - 0.8 over a mean of 10/3 rounds, on 2 degrees of freedom.
    residuals = [0.12, -0.18, 0.06]
    reach = 4.302653 * np.std(residuals, ddof=1) / math.sqrt(3)
    assert (low, high) == pytest.approx((0.4 - reach, 0.4 + reach), rel=1e-4)
    rate, low, high = analysis.pooled_rate(runs[:1])
    assert rate == 0.5
    assert math.isnan(low)
    assert math.isnan(high)
    assert all(math.isnan(value) for value in analysis.pooled_rate([NOTHING]))


# ------------------------------------------------------------ matched rewards

MULTIPLES = {"narrow": 1.0, "wide": 2.0, "widest": 4.0}


def rated(violations: int, reward: float, seeds: Sequence[int] = (0, 1, 2)) -> list[Result]:
    """Runs of ten certified rounds, some of which are violated."""
    rounds = [BAD] * violations + [FINE] * (10 - violations)
    return [run(rounds, seed, reward) for seed in seeds]


def function(method: list[Result]) -> dict[str, list[Result]]:
    return {
        "narrow": rated(4, 8.0),
        "wide": rated(2, 6.0),
        "widest": rated(1, 1.0),
        "method": method,
    }


@pytest.mark.parametrize(
    ("violations", "factor", "matched", "outside"),
    [(4, 1.0, 8.0, 0), (3, 1.5, 7.0, 0), (2, 2.0, 6.0, 0), (1, 4.0, 1.0, 0)]
    + [(0, 4.0, 1.0, 1), (7, 1.0, 8.0, 1)],
)
def test_matched_rewards(violations: int, factor: float, matched: float, outside: int) -> None:
    found = matched_reward([function(rated(violations, 5.0))], "method", MULTIPLES)
    assert found is not None
    assert found.difference == pytest.approx(5.0 - matched)
    # All seeds are equal, so the interval has length 0.
    assert found.interval == pytest.approx((5.0 - matched,) * 2)
    assert found.factors == pytest.approx((factor,))
    assert found.outside == outside


def test_a_multiple_is_matched_with_itself() -> None:
    rng = np.random.default_rng(1)
    case = [
        {
            name: [
                run([BAD] * rng.binomial(30, rate) + [FINE] * 30, seed, rng.normal())
                for seed in range(8)
            ]
            for name, rate in (("narrow", 0.9), ("wide", 0.5), ("widest", 0.1))
        }
    ]
    found = matched_reward(case, "wide", MULTIPLES)
    assert found is not None
    assert found.difference == pytest.approx(0.0, abs=1e-12)
    assert found.interval == pytest.approx((0.0, 0.0), abs=1e-12)
    assert found.factors == pytest.approx((2.0,))
