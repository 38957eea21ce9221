"""Artificial runs for the reports on calibration, and cells of their tables."""

from __future__ import annotations

from typing import Any

from benchmarks.framework.replicate_result import Result
from tests.benchmarks.made_up_results import result_with


def run(
    regret: float = 1.0,
    claimed: tuple[float | None, ...] = (1.0, 0.0, None, 1.0),
    better: tuple[float | None, ...] = (1.0, 1.0, None, 0.0),
    start: int = 0,
    incumbent: int = 3,
    **fields: Any,
) -> Result:
    """A run with a spread of 2 that recommends the third of its four points."""
    made: dict[str, Any] = {
        "problem": "problem",
        "method": "method",
        "seed": 0,
        "num_initial": 2,
        "inference_by_outcome": [start, start, incumbent],
        "inference_by_mean": [0, 0, 2],
        "regret_by_outcome": [4.0, 4.0, 4.0],
        "regret_by_mean": [5.0, 5.0, regret],
        "fit_seconds": [0.25, 0.25],
        "acquisition_seconds": [0.25, 0.25],
        "extras": {
            "spread": [2.0],
            "regret_evaluated": [4.0, 4.0, 0.2],
            "claimed": list(claimed),
            "better": list(better),
            "covered": [1.0, 0.0],
            "objective_covered": [1.0, 1.0, 0.0, 0.0],
            "objective_covered_in_box": [0.9],
            "outcome_covered": [0.7],
            "outcome_covered_in_box": [0.6],
        },
        "versions": {"python": "3"},
    }
    return result_with(**{**made, **fields})
