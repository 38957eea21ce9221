"""Comparisons that a protocol declares: paired by seed, with intervals, corrected for their number.

The unit of all intervals and tests is the seed: a seed draws the same designs and noise streams on
all problems, so its values are averaged over problems first. Everything here is a pure function of
results and of numbers read off them; what is compared is the better for being smaller.
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
    """One comparison of a family.

    Args:
        values: The differences by seed, at least two.
        p: Wilcoxon's p-value, two-sided, after Holm's correction for the family.
        detectable: See `detectable`.
    """

    values: tuple[float, ...]
    p: float
    detectable: float

    def verdict(self, margin: float) -> str:
        return verdict(student_interval(self.values), self.p, margin)

    def mean_cells(self, form: str) -> list[str]:
        """Mean and 95 % interval, for a table."""
        return [f"{np.mean(self.values):+{form}}", interval(self.values, f"+{form}")]

    def tested_cells(self, form: str) -> list[str]:
        """As `mean_cells`, with the p-value and the detectable difference."""
        return [*self.mean_cells(form), number(self.p, 2), f"{self.detectable:{form}}"]

    def cells(self, form: str, margin: float) -> list[str]:
        """As `tested_cells`, with the verdict."""
        return [*self.tested_cells(form), self.verdict(margin)]

    def percent_cells(self, margin: float) -> list[str]:
        """Seeds, mean, interval, p-value, verdict and detectable difference, for a table.

        Of natural logarithms, in percent of the second.
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

    A dash stands for what is not known of fewer than two values.
    """
    if len(values) == 0:
        return "–", "–"
    mean = f"{100 * math.expm1(np.mean(values)):+.0f} %"
    if len(values) == 1:
        return mean, "–"
    low, high = student_interval(values)
    return mean, f"{100 * math.expm1(low):+.0f} to {100 * math.expm1(high):+.0f} %"


def differences(own: Mapping[int, float], other: Mapping[int, float]) -> tuple[float, ...]:
    """The first values less the second ones, on the seeds that both have."""
    return tuple(own[seed] - other[seed] for seed in sorted(own.keys() & other.keys()))


def family(
    pairs: Mapping[K, tuple[Mapping[int, float], Mapping[int, float]]],
) -> dict[K, Difference]:
    """The first values less the second ones, by seed, corrected for the number of ``pairs``.

    Comparisons with fewer than two seeds in common are left out, but are counted: ``pairs`` are
    those that are declared, so that the correction does not depend on what has been run so far.
    """
    # Without a p-value, a comparison takes the last place in Holm's order.
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
    """Each pair of methods in each group of problems: a family for each score.

    Args:
        groups: Results of the problems of each group, over which a seed's values are averaged.
        pairs: Methods, of which the first is compared with the second.
        scores: What is compared.

    Returns:
        By group and pair the differences of each score, where the first score has them.
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
    """By problem the baseline's mean, and cells with differences of the methods to it."""
    for problem in collected:
        own, *others = (
            scores_of(Run(problem, method), collected, score) for method in (baseline, *methods)
        )
        mean = float(np.mean([*own.values()])) if own else math.nan
        yield problem, mean, [mean_with_interval(differences(v, own), "+.2f") for v in others]


def detectable(differences: Sequence[float], num_tests: int) -> float:
    """The mean difference that would be found with a power of 80 %.

    By the normal approximation, at the level of the first of ``num_tests`` steps of Holm's
    correction, which is the strictest.
    """
    normal = NormalDist()
    reach = normal.inv_cdf(1.0 - 0.5 * SIGNIFICANCE / num_tests) + normal.inv_cdf(POWER)
    return reach * float(np.std(differences, ddof=1)) / math.sqrt(len(differences))


def verdict(interval: tuple[float, float], adjusted_p: float, margin: float) -> str:
    """What a difference to the baseline says of a method.

    ``equivalent`` if the interval lies within the margin on either side, whatever the p-value; else
    ``better`` or ``worse`` if the test is significant; else ``undecided``.
    """
    low, high = interval
    if -margin < low and high < margin:
        return "equivalent"
    if adjusted_p >= SIGNIFICANCE:
        return "undecided"
    return "better" if low + high < 0.0 else "worse"
