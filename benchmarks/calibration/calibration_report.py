"""A report of regret and calibration for suites without a protocol, hence without comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from matplotlib.figure import Figure

from benchmarks.framework import metrics
from benchmarks.framework.markdown import page, scores_by_method, sections
from benchmarks.framework.plots import regret_figure
from benchmarks.framework.replicate_result import Collected, Score
from benchmarks.framework.suite import Suite

# The scores in the table; a dash replaces a score that is not recorded.
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
        problems = sections(collected, partial(scores_by_method, scores=SCORES))
        return page("regret_and_calibration", problems=problems)

    def figure(self, collected: Collected) -> Figure:
        return regret_figure(collected)
