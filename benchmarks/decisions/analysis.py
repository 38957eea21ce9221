"""Scores of the suites on decisions, and rewards compared at equal rates of violations.

All functions are pure functions of results. The unit of all intervals and tests is the seed. The
values of a seed are first averaged over the functions of a case, which share designs and noise
streams. Rates are shares of the certified rounds and are weighted by the number of these rounds: a
run that certifies only one round and violates it has a rate of 1, which says almost nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.framework.metrics import trace
from benchmarks.framework.replicate_result import ByMethod, Result
from benchmarks.framework.statistics import pooled_ratio
from benchmarks.framework.stored_results import (
    EXACT,
    FLAGS,
    Condensation,
    Derived,
    average,
    decimals,
    significant,
)

RESAMPLES = 2000


# ------------------------------------------------------------ of a single run


def violation_rate(result: Result) -> float:
    """Share of the certified rounds whose outcome violated the limit; 0 if none was certified."""
    certified = _certified(result)
    return float(_array(result, "violated")[certified].mean()) if certified.any() else 0.0


def miss_rate(result: Result) -> float:
    """Share of the certified rounds whose outcome exceeded the stated quantile; NaN without any.

    Unlike a violation, a miss does not depend on how far the quantile lay below the limit.
    """
    certified = _certified(result)
    missed = _derived(result, "missed") > 0.5
    return float(missed[certified].mean()) if certified.any() else math.nan


def true_violation_rate(result: Result) -> float:
    """Mean true probability of a violation over the certified rounds; NaN without any."""
    return float(_derived(result, "true_rate")[0])


def certified_rounds(result: Result) -> float:
    """Number of certified rounds."""
    return float(_certified(result).sum())


def certified_share(result: Result) -> float:
    """Share of the rounds that were certified."""
    return float(_certified(result).mean())


def reward(result: Result) -> float:
    """Mean noise-free objective over all rounds, certified or not."""
    return float(_derived(result, "mean_reward")[0])


@dataclass(frozen=True)
class ViolationGap:
    """``|violation rate - stated|``, the primary endpoint.

    Args:
        stated: The rate of violations that was stated.
    """

    stated: float

    def __call__(self, result: Result) -> float:
        return abs(violation_rate(result) - self.stated)


@dataclass(frozen=True)
class RecommendedSafe:
    """1 if a point is recommended at the end that is truly safe, else 0.

    Args:
        stated: Probability of a violation that a safe point may have.
    """

    stated: float

    def __call__(self, result: Result) -> float:
        (probability,) = result.extras["recommended_probability"]
        return float(probability is not None and probability <= self.stated)


@dataclass(frozen=True)
class RecommendedRegret:
    """The regret of the recommended point against the best safe point; NaN if it is not safe.

    Args:
        stated: Probability of a violation that a safe point may have.
    """

    stated: float

    def __call__(self, result: Result) -> float:
        if not RecommendedSafe(self.stated)(result):
            return math.nan
        (best,), (value,) = trace(result, "best_value"), trace(result, "recommended_value")
        return best - value


def _missed(result: Result) -> list[float]:
    """Whether the outcome of each round exceeded the stated quantile."""
    return [float(m) for m in _array(result, "outcome") > _array(result, "quantile")]


def _rewards(result: Result) -> list[float]:
    """The noise-free objective of each round."""
    return result.f[result.num_initial :]


def _mean_reward(result: Result) -> list[float]:
    return [float(np.mean(_rewards(result)))]


def _true_rate(result: Result) -> list[float | None]:
    certified = _certified(result)
    if not certified.any():
        return [None]
    return [float(_array(result, "probability")[certified].mean())]


# Data that are computed from raw results and stored in archives: flags that rounding could change,
# rewards without the initial points, and means, which would be biased by the rounding of a point
# that is chosen in many rounds.
DERIVED: dict[str, Derived] = {
    "missed": Derived(_missed, FLAGS),
    "reward": Derived(_rewards, significant(3)),
    "mean_reward": Derived(_mean_reward, significant(6)),
    "true_rate": Derived(_true_rate, significant(6)),
}

# Flags, rewards and probabilities of violations by round. All digits of the recommendation are
# kept, since they decide whether it is safe.
ARCHIVED = Condensation(
    fields={"fit_seconds": average(), "acquisition_seconds": average()},
    extras={
        "certified": FLAGS,
        "violated": FLAGS,
        "probability": decimals(3),
        "best_value": EXACT,
        "recommended_value": EXACT,
        "recommended_probability": EXACT,
    },
    derived=DERIVED,
)


def _derived(result: Result, name: str) -> np.ndarray:
    """One of `DERIVED`, from the archive or the raw result; NaN where it has no value."""
    if name in result.extras:
        return _array(result, name)
    return np.array(DERIVED[name].trace(result), dtype=float)


def _certified(result: Result) -> np.ndarray:
    return _array(result, "certified") > 0.5


def _array(result: Result, name: str) -> np.ndarray:
    return np.array(trace(result, name))


# ------------------------------------------------------------ over all seeds


def pooled_rate(results: Sequence[Result]) -> tuple[float, float, float]:
    """The sum of violations over the sum of certified rounds, with its 95 % interval."""
    certified = [certified_rounds(result) for result in results]
    violated = [n * violation_rate(result) for n, result in zip(certified, results, strict=True)]
    return pooled_ratio(violated, certified)


# ------------------------------------------------------------ rewards at matched violations


@dataclass(frozen=True)
class Matched:
    """The difference in reward between a method and a multiple of the plain quantile.

    The multiple has the factor at which it violates the limit as often as the method.

    Args:
        difference: Mean over the functions of a case.
        interval: Its 95 % interval.
        factors: The factor of each function.
        outside: Number of functions whose factor lies outside the range of factors that were
            run; the nearest factor replaces it.
    """

    difference: float
    interval: tuple[float, float]
    factors: tuple[float, ...]
    outside: int


def matched_reward(
    case: Sequence[ByMethod], method: str, multiples: Mapping[str, float]
) -> Matched | None:
    """Compare a method's reward with multiples of the plain quantile at the same violation rate.

    For each function, a rate is the sum of violations over the sum of certified rounds of all
    seeds, and a reward is the mean over the seeds. Rates are made monotone in the factor (running
    minimum); between neighbouring factors, rate and reward are interpolated linearly. The interval
    comes from 2000 resamples of the seeds, the same for all functions of the case and for all
    methods, so that it includes the uncertainty of the factors.

    Args:
        case: Results of the functions of a case.
        method: The method.
        multiples: Factors of the plain quantile by the name of the method, in increasing order.

    Returns:
        The comparison, or None if the methods have no common seed.
    """
    names = [method, *multiples]
    runs = [{name: _by_seed(by_method.get(name, [])) for name in names} for by_method in case]
    common = set.intersection(*(set(r) for function in runs for r in function.values()))
    if not common:
        return None
    seeds = sorted(common)
    draws = np.random.default_rng(0).multinomial(
        len(seeds), np.full(len(seeds), 1 / len(seeds)), RESAMPLES
    )
    weights = np.concatenate([np.ones((1, len(seeds))), draws])
    factors = np.array(list(multiples.values()))
    differences, found, outside = [], [], 0
    for function in runs:
        rates, rewards = _rates_and_rewards(
            [[function[n][s] for s in seeds] for n in names], weights
        )
        position, beyond = _crossing(rates[:, 1:], rates[:, 0])
        differences.append(rewards[:, 0] - _at(rewards[:, 1:], position))
        found.append(float(_at(factors[None].repeat(len(position), axis=0), position)[0]))
        outside += int(beyond[0])
    mean = np.mean(differences, axis=0)
    low, high = np.quantile(mean[1:], [0.025, 0.975])
    return Matched(float(mean[0]), (float(low), float(high)), tuple(found), outside)


def _by_seed(results: Sequence[Result]) -> dict[int, Result]:
    return {result.seed: result for result in results}


def _rates_and_rewards(
    runs: Sequence[Sequence[Result]], weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Pooled rates and mean rewards, ``resamples x methods``, from ``methods x seeds`` runs."""
    certified = np.array([[_certified(r).sum() for r in row] for row in runs])
    violated = np.array(
        [[(_array(r, "violated") * _certified(r)).sum() for r in row] for row in runs]
    )
    rewards = np.array([[reward(r) for r in row] for row in runs])
    counts = weights @ certified.T
    rates = np.divide(weights @ violated.T, counts, out=np.zeros_like(counts), where=counts > 0)
    return rates, weights @ rewards.T / weights.sum(axis=1, keepdims=True)


def _crossing(rates: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Positions, from 0 to ``k - 1``, where falling ``rates`` (``b x k``) reach ``target`` (``b``).

    The second result states whether the target is out of range; the position is then the
    nearest end.
    """
    falling = np.minimum.accumulate(rates, axis=1)
    beyond = (target > falling[:, 0]) | (target < falling[:, -1])
    last = falling.shape[1] - 2
    # The last segment that begins above the target. Of several factors with equal rates, the
    # smallest counts, since it has the largest reward.
    left = np.clip((falling > target[:, None]).sum(axis=1) - 1, 0, last)
    rows = np.arange(len(left))
    upper, lower = falling[rows, left], falling[rows, left + 1]
    drop = upper - lower
    share = np.divide(upper - target, drop, out=(upper > target).astype(float), where=drop > 0)
    return left + np.clip(share, 0.0, 1.0), beyond


def _at(values: np.ndarray, position: np.ndarray) -> np.ndarray:
    """``values`` (``b x k``) at positions between their columns, linearly interpolated."""
    left = np.minimum(position.astype(int), values.shape[1] - 2)
    share, rows = position - left, np.arange(len(left))
    result: np.ndarray = (1 - share) * values[rows, left] + share * values[rows, left + 1]
    return result
