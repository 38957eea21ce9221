"""The primary comparisons with the baseline in the suites with contexts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from benchmarks.framework.comparisons import family_of_runs
from benchmarks.framework.markdown import table
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import Collected, Run, Score
from benchmarks.framework.suite import Suite


def primary_comparisons(
    suite: Suite[Any, Any], collected: Collected, methods: Sequence[str], log_regret: Score
) -> list[str]:
    """A table of each method compared with the baseline on each problem, with Holm's correction.

    Args:
        suite: The suite.
        collected: The results.
        methods: The methods that are compared with the baseline.
        log_regret: The endpoint, a natural logarithm.
    """
    margin = margin_of(suite)
    pairs = [
        (Run(problem.name, method), Run(problem.name, suite.baseline))
        for problem in suite.problems
        for method in methods
    ]
    found = family_of_runs(pairs, collected, log_regret)
    rows = [[*run, *difference.percent_cells(margin)] for (run, _), difference in found.items()]
    header = ["problem", "method", "seeds", f"regret to {suite.baseline}", "95 % interval"]
    verdict = f"verdict (margin {100 * math.expm1(margin):.0f} %)"
    return table([*header, "corrected p", verdict, "detectable"], rows)
