"""Artificial results for tests."""

from dataclasses import replace
from typing import Any

from benchmarks.framework.replicate_result import Result

ByProblem = dict[str, dict[str, list[Result]]]


def result_with(problem: str, method: str, seed: int, **fields: Any) -> Result:
    """A result with these fields; all others are empty."""
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


def without_times(result: Result) -> Result:
    """The result without its wall times, which differ between runs."""
    return replace(result, fit_seconds=[], acquisition_seconds=[])
