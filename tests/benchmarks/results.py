"""Results for tests of reports and statistics, which read little of them."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from benchmarks.framework.results import Collected, Result, replicate_config
from benchmarks.framework.stored_results import Entry
from benchmarks.framework.suite import Suite

ByProblem = dict[str, dict[str, list[Result]]]


def result_with(problem: str, method: str, seed: int, **fields: Any) -> Result:
    """A result of which these fields are known; all others are empty."""
    empty: dict[str, Any] = {
        "num_initial": 0,
        "X": [],
        "y": [],
        "f": [],
        "inference_by_outcome": [],
        "inference_by_mean": None,
        "regret_by_outcome": [],
        "regret_by_mean": None,
        "fit_seconds": [],
        "acquisition_seconds": [],
        "extras": {},
        "config": {},
    }
    return Result(problem=problem, method=method, seed=seed, **{**empty, **fields})


def made_up(
    suite: Suite[Any, Any], seeds: Iterable[int], make: Callable[[str, str, int], Result]
) -> ByProblem:
    """A suite's results: ``make`` has the names of problem and method, and the seed's number."""
    found: ByProblem = {}
    for problem in suite.problems:
        found[problem.name] = {}
        for method in suite.methods:
            names: dict[str, Any] = {"problem": problem.name, "method": method.name}
            config = replicate_config(problem, method)
            found[problem.name][method.name] = [
                replace(make(problem.name, method.name, i), **names, seed=seed, config=config)
                for i, seed in enumerate(seeds)
            ]
    return found


def archived(suite: Suite[Any, Any], collected: Collected) -> ByProblem:
    """What the archive of a suite keeps of its results."""
    return {
        problem: {
            method: [Entry.of(result, suite.archive).result() for result in results]
            for method, results in by_method.items()
        }
        for problem, by_method in collected.items()
    }
