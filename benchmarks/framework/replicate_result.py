"""`Result`: the data of a replicate; scores of many results by seed, and their means."""

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
    """A problem or a method of any kind; its name and its description (`describe`) identify it."""

    @property
    def name(self) -> str:
        """The name, unique within a suite."""


@dataclass(frozen=True)
class Result:
    """The data of one replicate. Points are in order of evaluation, the initial points first.

    Inferences and regrets have ``num_evaluations + 1`` entries, the first after the initial design.
    An inference is the index of the recommended point: the point with the largest observed outcome,
    or with the largest posterior mean (``None`` without a model). Its regret is the optimal value
    minus the noise-free value at this point.
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
    """Versions of Python and of the packages on which the results depend."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions


# ------------------------------------------------------------ many results

# Maps the result of a finished replicate to a number; NaN if there is none.
Score = Callable[[Result], float]

# The results on one problem, by method.
ByMethod = Mapping[str, Sequence[Result]]
# The results on all problems, by problem and method.
Collected = Mapping[str, ByMethod]


class Run(NamedTuple):
    """A method on a problem."""

    problem: str
    method: str

    def __str__(self) -> str:
        return f"{self.method} on {self.problem}"


# Two runs; the first is compared with the second.
Pair = tuple[Run, Run]


def methods_in(case: Iterable[Mapping[str, Any]]) -> list[str]:
    """The methods that have results on any of the problems, in order of appearance."""
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
    """The score of each seed; seeds with a score of NaN are left out."""
    scores = {result.seed: score(result) for result in results}
    return {seed: value for seed, value in scores.items() if not math.isnan(value)}


def scores_of(run: Run, collected: Collected, score: Score) -> dict[int, float]:
    """The scores of a method on a problem by seed; empty if the method has not been run."""
    return by_seed(collected.get(run.problem, {}).get(run.method, []), score)


def seed_means(
    case: Sequence[ByMethod], method: str, score: Score, weight: Score | None = None
) -> dict[int, float]:
    """A method's score by seed, averaged over the problems on which it is not NaN.

    Only seeds with results on all problems are included.

    Args:
        case: Results of the problems that belong together.
        method: The method.
        score: The score.
        weight: The weight of a result in the average. Weights are equal by default, and if all of
            them are 0.
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
