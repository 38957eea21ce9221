"""A report without comparisons, of suites that have no protocol: regret and calibration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from benchmarks.framework import metrics
from benchmarks.framework.markdown import estimate, page, sections, table
from benchmarks.framework.plots import regret_figure
from benchmarks.framework.replicate_result import ByMethod, Collected, Score, by_seed
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite

# What is shown of the runs of a method on a problem; a dash where it is not recorded.
SCORES: dict[str, Score] = {
    "regret": lambda result: result.regret_by_outcome[-1],
    "miscoverage": metrics.miscoverage,
    "calibration error": metrics.calibration_error,
    "coverage of f, visited": partial(metrics.objective_coverage, place="visited"),
    "coverage of f, box": partial(metrics.objective_coverage, place="box"),
    "s": metrics.seconds_per_evaluation,
}


@dataclass(frozen=True)
class CalibrationReport:
    """A table of scores for each problem."""

    def lines(self, suite: Suite, collected: Collected) -> list[str]:
        return page("regret_and_calibration", problems=sections(collected, scores_by_method))

    def figure(self, collected: Collected) -> Figure:
        return regret_figure(collected)


def scores_by_method(by_method: ByMethod) -> list[str]:
    """A row for each method: mean ± standard error over seeds."""
    body = [
        [
            method,
            str(len(results)),
            *(
                estimate(Estimate.of(list(by_seed(results, score).values())))
                for score in SCORES.values()
            ),
        ]
        for method, results in by_method.items()
    ]
    return table(["method", "seeds", *SCORES], body)
