"""Comparisons that a protocol declares: paired by seed, with intervals, corrected for their number.

The unit of all intervals and tests is the seed. A seed has the same designs and noise streams on
all problems, so its values are averaged over problems first. All functions are pure functions of
results or of scores. Smaller scores are better.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TypeVar

import numpy as np

from benchmarks.framework.markdown import interval, mean_with_interval, number
from benchmarks.framework.replicate_result import (
    ByMethod,
    Collected,
    Pair,
    Run,
    Score,
    scores_of,
    seed_means,
)
from benchmarks.framework.statistics import SIGNIFICANCE, holm, paired_test, student_interval

K = TypeVar("K", bound=Hashable)

POWER = 0.8


@dataclass(frozen=True)
class Difference:
    """One comparison of a family of comparisons.

    Args:
        values: The differences of at least two seeds.
        p: Wilcoxon's p-value, two-sided, after Holm's correction for the family.
        detectable: The mean difference that would be detected (see `detectable`).
    """

    values: tuple[float, ...]
    p: float
    detectable: float

    def verdict(self, margin: float) -> str:
        return verdict(student_interval(self.values), self.p, margin)

    def mean_cells(self, form: str) -> list[str]:
        """Cells of a table: mean and 95 % interval."""
        return [f"{np.mean(self.values):+{form}}", interval(self.values, f"+{form}")]

    def tested_cells(self, form: str) -> list[str]:
        """Cells of a table: mean, 95 % interval, p-value and detectable difference."""
        return [*self.mean_cells(form), number(self.p, 2), f"{self.detectable:{form}}"]

    def cells(self, form: str, margin: float) -> list[str]:
        """Cells of a table: the cells of `tested_cells`, and the verdict."""
        return [*self.tested_cells(form), self.verdict(margin)]

    def percent_cells(self, margin: float) -> list[str]:
        """Cells of a table for differences of natural logarithms, in percent of the second value.

        The cells are number of seeds, mean, interval, p-value, verdict and detectable difference.
        """
        mean, bounds = percent_of_logarithms(self.values)
        return [
            str(len(self.values)),
            mean,
            bounds,
            number(self.p, 2),
            self.verdict(margin),
            f"{100 * math.expm1(self.detectable):.0f} %",
        ]


def percent_of_logarithms(values: Sequence[float]) -> tuple[str, str]:
    """The mean of differences of natural logarithms, and its 95 % interval, in percent.

    The interval is a dash for fewer than two values. The mean is a dash without values.
    """
    if len(values) == 0:
        return "–", "–"
    mean = f"{100 * math.expm1(np.mean(values)):+.0f} %"
    if len(values) == 1:
        return mean, "–"
    low, high = student_interval(values)
    return mean, f"{100 * math.expm1(low):+.0f} to {100 * math.expm1(high):+.0f} %"


def differences(own: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, ...]:
    """The values of ``own`` minus the values of ``other``, for the seeds that both have."""
    return tuple(own[seed] - other[seed] for seed in sorted(own.keys() & other.keys()))


def family(
    pairs: Mapping[K, tuple[Mapping[int, float], Mapping[int, float]]],
) -> dict[K, Difference]:
    """Compare the first values of each pair with the second values, paired by seed.

    P-values are corrected for the number of ``pairs``, which are all declared comparisons. A
    comparison with fewer than two common seeds is counted but left out of the result, so that the
    correction does not depend on what has been run so far.
    """
    # A comparison without a p-value is last in Holm's order.
    tests = [paired_test(dict(own), dict(other)) for own, other in pairs.values()]
    adjusted = holm([test.wilcoxon_p_value for test in tests])
    found = {}
    for (key, (own, other)), p in zip(pairs.items(), adjusted, strict=True):
        values = differences(own, other)
        if len(values) >= 2:
            found[key] = Difference(values, p, detectable(values, len(pairs)))
    return found


def family_of_runs(
    pairs: Sequence[Pair], collected: Collected, score: Score
) -> dict[Pair, Difference]:
    return family(
        {
            (first, second): (
                scores_of(first, collected, score),
                scores_of(second, collected, score),
            )
            for first, second in pairs
        }
    )


def grouped_families(
    groups: Mapping[str, Sequence[ByMethod]],
    pairs: Sequence[tuple[str, str]],
    scores: Sequence[Score],
) -> dict[tuple[str, str, str], tuple[Difference, ...]]:
    """Compare each pair of methods in each group of problems, with a family for each score.

    Args:
        groups: Results of each group of problems; a seed's values are averaged over the group.
        pairs: Pairs of methods; the first method is compared with the second.
        scores: The scores that are compared.

    Returns:
        The differences of each score, by group and pair, if the first score has a difference.
    """
    found = [
        family(
            {
                (name, *pair): (seed_means(case, pair[0], score), seed_means(case, pair[1], score))
                for name, case in groups.items()
                for pair in pairs
            }
        )
        for score in scores
    ]
    return {key: tuple(of_score[key] for of_score in found) for key in found[0]}


def differences_by_problem(
    collected: Collected, methods: Sequence[str], baseline: str, score: Score
) -> Iterator[tuple[str, float, list[str]]]:
    """Yield each problem, the baseline's mean, and cells with differences to the baseline."""
    for problem in collected:
        own, *others = (
            scores_of(Run(problem, method), collected, score) for method in (baseline, *methods)
        )
        mean = float(np.mean([*own.values()])) if own else math.nan
        yield problem, mean, [mean_with_interval(differences(v, own), "+.2f") for v in others]


def detectable(differences: Sequence[float], num_tests: int) -> float:
    """The mean difference that would be detected with a power of 80 %.

    This is a normal approximation, at the level of the first of the ``num_tests`` steps of Holm's
    correction, the strictest level.
    """
    normal = NormalDist()
    reach = normal.inv_cdf(1.0 - 0.5 * SIGNIFICANCE / num_tests) + normal.inv_cdf(POWER)
    return reach * float(np.std(differences, ddof=1)) / math.sqrt(len(differences))


def verdict(interval: tuple[float, float], adjusted_p: float, margin: float) -> str:
    """Return the verdict on a method's difference to the baseline.

    ``equivalent`` if the interval lies within the margin on either side, whatever the p-value; else
    ``better`` or ``worse`` if the test is significant; else ``undecided``.
    """
    low, high = interval
    if -margin < low and high < margin:
        return "equivalent"
    if adjusted_p >= SIGNIFICANCE:
        return "undecided"
    return "better" if low + high < 0.0 else "worse"
