"""The report of suites of optimisation runs: simple regret, coverage and times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.framework.collected import Collected
from benchmarks.framework.markdown import estimate, number, paired_cells, paired_header, table
from benchmarks.framework.metrics import final_regrets
from benchmarks.framework.result import Result
from benchmarks.framework.statistics import Estimate, PairedTest, paired_test
from benchmarks.framework.suite import Suite

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class RegretReport:
    """A table of final regrets for each problem, and curves of regret."""

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """A legend, and one table for each problem."""
        lines = [
            "Final simple regret f(x*) - f(x), at the point with the largest outcome and at the "
            "one with the largest posterior mean: mean ± standard error over seeds, lower is "
            f"better. Differences are paired by seed with `{suite.baseline}`; p-values are "
            "two-sided. Coverage is that of the interval stated before each outcome; times are "
            "per evaluation.",
            "",
        ]
        for problem, by_method in collected.items():
            baseline = by_method.get(suite.baseline, [])
            rows = [summarise(results, baseline) for results in by_method.values()]
            lines += [f"## {problem}", "", *_table(rows, suite.baseline), ""]
        return lines

    def figure(self, collected: Collected) -> Figure:
        """Regret curves."""
        from benchmarks.framework.plots import regret_figure

        return regret_figure(collected)


@dataclass(frozen=True)
class Row:
    """One method's line in the table of one problem. Times are per evaluation."""

    method: str
    seeds: int
    regret: Estimate
    regret_by_mean: Estimate
    versus_baseline: PairedTest
    coverage: Estimate
    fit_seconds: float
    acquisition_seconds: float


def summarise(results: Sequence[Result], baseline: Sequence[Result]) -> Row:
    """Summarise one method's results on one problem against the baseline's."""
    final_by_mean = [r.regret_by_mean[-1] for r in results if r.regret_by_mean is not None]
    covered = [_mean(r.extras["covered"]) for r in results if "covered" in r.extras]
    return Row(
        method=results[0].method,
        seeds=len(results),
        regret=Estimate.of([r.regret_by_outcome[-1] for r in results]),
        regret_by_mean=Estimate.of(final_by_mean),
        versus_baseline=paired_test(
            final_regrets(results, "outcome"), final_regrets(baseline, "outcome")
        ),
        coverage=Estimate.of(covered),
        fit_seconds=float(np.mean([np.mean(r.fit_seconds) for r in results])),
        acquisition_seconds=float(np.mean([np.mean(r.acquisition_seconds) for r in results])),
    )


def _mean(values: Sequence[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))


def _table(rows: Sequence[Row], baseline: str) -> list[str]:
    header = [
        "method",
        "seeds",
        "regret",
        *paired_header(baseline),
        "regret, posterior mean",
        "coverage",
        "fit s",
        "acquisition s",
    ]
    body = []
    for row in rows:
        cells = [
            row.method,
            str(row.seeds),
            estimate(row.regret),
            *paired_cells(row.versus_baseline, row.method != baseline),
            estimate(row.regret_by_mean),
            estimate(row.coverage),
            number(row.fit_seconds),
            number(row.acquisition_seconds),
        ]
        body.append(cells)
    return table(header, body)
