"""The report of suite `locbo_full`: declared comparisons across problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from benchmarks.calibration.calibration_report import CalibrationReport
from benchmarks.calibration.log_regret import FLOOR, LogRegret
from benchmarks.framework import comparisons
from benchmarks.framework.markdown import table
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.results import Collected, Pair, Run
from benchmarks.framework.suite import Suite

# The published endpoint, and what a user gets.
BY_OUTCOME, RECOMMENDED = LogRegret("outcome"), LogRegret("mean")


@dataclass(frozen=True)
class PublishedReport:
    """Comparisons of one run with another, and then the tables of `CalibrationReport`.

    Args:
        primary: The primary comparisons, the first of a pair less the second.
        others: Secondary comparisons, beside those of each method with the baseline.
        tables: What follows.
    """

    primary: tuple[Pair, ...]
    others: tuple[Pair, ...] = ()
    tables: CalibrationReport = CalibrationReport(inference="outcome")

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """The comparisons, and what there is of each problem."""
        margin = margin_of(suite)
        with_baseline = [
            (Run(problem.name, method.name), Run(problem.name, suite.baseline))
            for problem in suite.problems
            for method in suite.methods
            if method.name != suite.baseline
        ]
        secondary = [pair for pair in (*self.others, *with_baseline) if pair not in self.primary]
        body = [
            [name, *row]
            for name, pairs in (("primary", self.primary), ("secondary", secondary))
            for row in _rows(pairs, collected, margin)
        ]
        header = ["family", "first", "second", "seeds", "difference", "95 % interval", "p"]
        header += ["detectable", "", "recommended", "95 % interval"]
        legend = (
            "The primary endpoint is the decimal logarithm of the final simple regret at the point "
            f"with the largest outcome, {FLOOR:g} at the least. Differences are those of the first "
            "run minus the second, paired by seed. p is Wilcoxon's, two-sided, after Holm's "
            "correction within the family; detectable is the difference found with a power of 80 % "
            f"at its strictest step. `equivalent`: the interval lies within ± {margin:g}. The last "
            "columns show the same at the point with the largest posterior mean, without a test."
        )
        lines = ["## Comparisons", "", legend, "", *table(header, body), ""]
        return lines + self.tables.lines(suite, collected)

    def figure(self, collected: Collected) -> Figure:
        """Regret curves."""
        return self.tables.figure(collected)


def _rows(pairs: Sequence[Pair], collected: Collected, margin: float) -> list[list[str]]:
    """The cells of each pair of which both have been run."""
    by_outcome, recommended = (
        comparisons.family_of_runs(pairs, collected, score) for score in (BY_OUTCOME, RECOMMENDED)
    )
    return [
        [
            *map(str, pair),
            str(len(found.values)),
            *found.cells(".3f", margin),
            *recommended[pair].mean_cells(".3f"),
        ]
        for pair, found in by_outcome.items()
    ]
