"""Results of a suite as reports read them, by problem and method; and their scores by seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.framework.metrics import Score
from benchmarks.framework.result import Result

# Results of one problem by method, and those of all problems.
ByMethod = Mapping[str, Sequence[Result]]
Collected = Mapping[str, ByMethod]


class Run(NamedTuple):
    """A method on a problem."""

    problem: str
    method: str

    def __str__(self) -> str:
        return f"{self.method} on {self.problem}"


# The first is compared with the second.
Pair = tuple[Run, Run]


def methods_in(case: Iterable[ByMethod]) -> list[str]:
    """The methods that have results on any of the problems, in order."""
    return list(dict.fromkeys(method for by_method in case for method in by_method))


def by_seed(results: Sequence[Result], score: Score) -> dict[int, float]:
    """A score for each seed, those without one left out."""
    scores = {result.seed: score(result) for result in results}
    return {seed: value for seed, value in scores.items() if not math.isnan(value)}


def scores_of(run: Run, collected: Collected, score: Score) -> dict[int, float]:
    """The scores of one method on one problem by seed; none if it has not been run."""
    return by_seed(collected.get(run.problem, {}).get(run.method, []), score)


def seed_means(
    case: Sequence[ByMethod], method: str, score: Score, weight: Score | None = None
) -> dict[int, float]:
    """A method's score by seed, averaged over the problems that have it.

    Only seeds that all problems have been run with count.

    Args:
        case: Results of the problems that belong together.
        method: The method.
        score: The score.
        weight: The weight of a run in the average; all are equal by default, and where all weigh
            nothing.
    """
    runs = [{r.seed: r for r in by_method.get(method, [])} for by_method in case]
    means = {}
    for seed in sorted(set.intersection(*map(set, runs)) if runs else ()):
        results = [r[seed] for r in runs if not math.isnan(score(r[seed]))]
        if not results:
            continue
        weights = [1.0 if weight is None else weight(result) for result in results]
        equal = not any(weights)
        means[seed] = float(
            np.average([score(r) for r in results], weights=None if equal else weights)
        )
    return means
