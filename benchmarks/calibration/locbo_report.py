"""The report of suite `locbo_full`: declared comparisons across problems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from benchmarks.calibration.calibration_report import CalibrationReport
from benchmarks.calibration.log_regret import FLOOR, LogRegret
from benchmarks.framework.comparisons import family_of_runs
from benchmarks.framework.markdown import page, table
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
    """

    primary: tuple[Pair, ...]
    others: tuple[Pair, ...] = ()

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        margin = margin_of(suite)
        with_baseline = [
            (Run(problem.name, method.name), Run(problem.name, suite.baseline))
            for problem in suite.problems
            for method in suite.methods
            if method.name != suite.baseline
        ]
        secondary = [pair for pair in (*self.others, *with_baseline) if pair not in self.primary]
        body = []
        for name, pairs in (("primary", self.primary), ("secondary", secondary)):
            recommended = family_of_runs(pairs, collected, RECOMMENDED)
            for pair, found in family_of_runs(pairs, collected, BY_OUTCOME).items():
                cells = [str(len(found.values)), *found.cells(".3f", margin)]
                body.append([name, *map(str, pair), *cells, *recommended[pair].mean_cells(".3f")])
        header = ["family", "first", "second", "seeds", "difference", "95 % interval", "p"]
        header += ["detectable", "", "recommended", "95 % interval"]
        return page(
            "locbo_full",
            floor=FLOOR,
            margin=margin,
            comparisons=table(header, body),
            further=CalibrationReport().lines(suite, collected)[:-1],
        )

    def figure(self, collected: Collected) -> Figure:
        return CalibrationReport().figure(collected)
