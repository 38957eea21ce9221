"""Statistics over seeds: means with errors and intervals, paired tests, and their correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

SIGNIFICANCE = 0.05

# For up to this number of differences with ties, Wilcoxon's test enumerates all signs. For more
# differences it uses the normal approximation, as in scipy.
NUM_ENUMERATED = 13


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error (NaN for fewer than two values)."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Estimate from independent values."""
        if len(values) == 0:
            return cls(math.nan, math.nan)
        error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), float(error))


def student_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's 95 % interval of the mean of at least two values."""
    mean, error = float(np.mean(values)), float(stats.sem(values))
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return mean - reach, mean + reach


@dataclass(frozen=True)
class PairedTest:
    """Differences ``method - baseline`` over common seeds, and two-sided p-values.

    A negative difference of regrets is in favour of the method. The p-values are NaN if there are
    fewer than two pairs or if all differences are equal.
    """

    pairs: int
    difference: Estimate
    t_p_value: float
    wilcoxon_p_value: float


def paired_test(values: dict[int, float], baseline: dict[int, float]) -> PairedTest:
    """Compare values by seed with the baseline's values of the same seeds."""
    a, b = _pairs(values, baseline)
    differences = a - b
    t_p = wilcoxon_p = math.nan
    if len(a) > 1 and np.ptp(differences) > 0:
        t_p = float(stats.ttest_rel(a, b).pvalue)
        wilcoxon_p = wilcoxon_p_value(differences)
    return PairedTest(len(a), Estimate.of(differences.tolist()), t_p, wilcoxon_p)


def wilcoxon_p_value(differences: np.ndarray) -> float:
    """Two-sided p-value of Wilcoxon's signed-rank test, which ignores differences of 0.

    It is the p-value of `scipy.stats.wilcoxon`, which takes seconds for few differences with ties.
    """
    ranked = differences[differences != 0.0]
    tied = len(np.unique(np.abs(ranked))) < len(differences)
    if len(differences) > NUM_ENUMERATED or not tied:
        return float(stats.wilcoxon(differences).pvalue)
    ranks = stats.rankdata(np.abs(ranked))
    signs = np.arange(2 ** len(ranks))[:, None] >> np.arange(len(ranks)) & 1
    # Ranks are multiples of 1/2, so their sums have no rounding errors.
    sums, observed = signs @ ranks, ranks[ranked > 0.0].sum()
    return float(min(2.0 * min(np.mean(sums <= observed), np.mean(sums >= observed)), 1.0))


def pooled_test(
    values: Sequence[dict[int, float]], baselines: Sequence[dict[int, float]]
) -> PairedTest:
    """One paired test over several problems, each in units of its baseline's mean.

    A seed has the same designs and noise streams on all problems, so its differences are not
    independent. Before the test they are averaged over the problems that have the seed.
    """
    scaled: list[dict[int, list[float]]] = [{}, {}]
    for own, reference in zip(values, baselines, strict=True):
        unit = float(np.mean(list(reference.values())))
        for seed in own.keys() & reference.keys():
            for target, source in zip(scaled, (own, reference), strict=True):
                target.setdefault(seed, []).append(source[seed] / unit)
    means = [{seed: float(np.mean(v)) for seed, v in by_seed.items()} for by_seed in scaled]
    return paired_test(means[0], means[1])


def _pairs(values: dict[int, float], baseline: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    seeds = sorted(values.keys() & baseline.keys())
    return np.array([values[s] for s in seeds]), np.array([baseline[s] for s in seeds])


def pooled_ratio(
    numerators: Sequence[float], denominators: Sequence[float]
) -> tuple[float, float, float]:
    """The ratio of two sums over seeds or runs, and both ends of its 95 % interval.

    The interval is Student's, for the linearised ratio; its ends are NaN for fewer than two seeds
    or runs. If the denominators are all 0, all three numbers are NaN.
    """
    above, below = np.array(numerators, dtype=float), np.array(denominators, dtype=float)
    if not below.any():
        return math.nan, math.nan, math.nan
    ratio = float(above.sum() / below.sum())
    if len(below) < 2:
        return ratio, math.nan, math.nan
    low, high = student_interval(((above - ratio * below) / below.mean()).tolist())
    return ratio, ratio + low, ratio + high


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for their number (Holm 1979). A p-value of NaN counts as 1."""
    p = np.nan_to_num(np.asarray(p_values, dtype=float), nan=1.0)
    order = np.argsort(p)
    steps = (len(p) - np.arange(len(p))) * p[order]
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted.tolist()


def count_significant(tests: Sequence[PairedTest]) -> tuple[int, int]:
    """The numbers of significantly negative and of significantly positive differences.

    The significance level of Wilcoxon's tests is 5 %, with Holm's correction for their number.
    """
    adjusted = holm([test.wilcoxon_p_value for test in tests])
    signs = [
        math.copysign(1.0, test.difference.mean)
        for test, p in zip(tests, adjusted, strict=True)
        if p < SIGNIFICANCE
    ]
    return signs.count(-1.0), signs.count(1.0)
