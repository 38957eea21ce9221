"""`Result`, all that a replicate gives, and how reports read many: by seed, and in means."""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple, Protocol

import numpy as np

from benchmarks.framework.config import describe

PACKAGES = ("torch", "botorch", "gpytorch", "botorch_calib", "numpy", "scipy")


class Named(Protocol):
    """A problem or a method, of whatever kind: its name and what `describe` makes of it count."""

    @property
    def name(self) -> str:
        """Names it within a suite."""


@dataclass(frozen=True)
class Result:
    """One replicate. Points are in order of evaluation, the initial ones first.

    Traces have ``num_evaluations + 1`` entries, the first after the initial design. An
    inference trace holds the index of the point that would be reported: the one with the
    largest observed outcome, or with the largest posterior mean (``None`` without a model).
    Regret is the optimal value minus the noise-free value there.
    """

    problem: str
    method: str
    seed: int
    num_initial: int
    X: list[list[float]]
    y: list[float]
    f: list[float]
    inference_by_outcome: list[int]
    inference_by_mean: list[int] | None
    regret_by_outcome: list[float]
    regret_by_mean: list[float] | None
    fit_seconds: list[float]
    acquisition_seconds: list[float]
    extras: dict[str, list[float | None]]
    config: dict[str, Any]
    versions: dict[str, str] = field(default_factory=dict)


def replicate_config(problem: Named, method: Named) -> dict[str, Any]:
    """The configuration of a replicate, as JSON."""
    config: dict[str, Any] = describe({"problem": problem, "method": method})
    return config


def installed_versions() -> dict[str, str]:
    """Versions of python and of the packages that decide the numbers."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions


# ------------------------------------------------------------ many results

# A number that a finished replicate is judged by.
Score = Callable[[Result], float]

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


def cases_of(
    groups: Mapping[str, Sequence[str]], collected: Collected
) -> dict[str, list[ByMethod]]:
    """The results of each group of problems."""
    return {
        name: [collected[problem] for problem in problems if problem in collected]
        for name, problems in groups.items()
    }


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
