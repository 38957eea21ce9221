"""The report of suites with contexts: regret in expectation over their distribution, and time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.framework import metrics
from benchmarks.framework.markdown import (
    difference,
    estimate,
    interval,
    number,
    pooled_difference,
    table,
)
from benchmarks.framework.metrics import Estimate, PairedTest, Score, by_seed, trace
from benchmarks.framework.result import Result
from benchmarks.framework.suite import Suite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ByMethod = Mapping[str, Sequence[Result]]

LAST_ROUNDS = 20

# Of the figure.
COLUMNS = 3
DASHED = ("gp_ucb", "sbo_kde", "drbo_mmd", "drbo_mmd_minimax", "stable_opt")


@dataclass(frozen=True)
class RobustReport:
    """Regret in expectation over the contexts, and time."""

    def lines(self, suite: Suite[Any, Any], collected: Mapping[str, ByMethod]) -> list[str]:
        """A legend, a summary and a table for each problem."""
        lines = [_legend(suite), "", "## All problems", "", *_summary_table(suite, collected), ""]
        for problem, by_method in collected.items():
            rows = [compare(method, by_method, suite.baseline) for method in by_method]
            lines += [f"## {problem}", "", *_problem_table(rows, suite.baseline), ""]
        return lines

    def figure(self, collected: Mapping[str, ByMethod]) -> Figure:
        """Curves of cumulative expected regret."""
        return robust_figure(collected)


def cumulative_regret(result: Result) -> float:
    """Over all rounds (eq. 11)."""
    return trace(result, "cumulative_regret")[-1]


def late_regret(result: Result) -> float:
    """The mean regret of a round (eq. 10) over the last rounds."""
    return float(np.mean(trace(result, "regret")[-LAST_ROUNDS:]))


def seconds(result: Result) -> float:
    """Time of the whole run, fits and choices together."""
    return sum(result.fit_seconds) + sum(result.acquisition_seconds)


@dataclass(frozen=True)
class Comparison:
    """One method on one problem, against the baseline."""

    method: str
    cumulative: Sequence[float]
    versus: PairedTest
    late: Estimate
    late_versus: PairedTest
    fit_seconds: float
    acquisition_seconds: float
    run_seconds: float


def compare(method: str, by_method: ByMethod, baseline: str) -> Comparison:
    """Judge one method's results on one problem."""
    results, reference = by_method[method], by_method.get(baseline, [])

    def versus(score: Score) -> PairedTest:
        return metrics.paired_test(by_seed(results, score), by_seed(reference, score))

    return Comparison(
        method=method,
        cumulative=[cumulative_regret(result) for result in results],
        versus=versus(cumulative_regret),
        late=Estimate.of([late_regret(result) for result in results]),
        late_versus=versus(late_regret),
        fit_seconds=float(np.mean([r.fit_seconds for r in results])),
        acquisition_seconds=float(np.mean([r.acquisition_seconds for r in results])),
        run_seconds=float(np.mean([seconds(result) for result in results])),
    )


def _legend(suite: Suite[Any, Any]) -> str:
    return (
        "Regret of a round is what the decisions' expected value, under the true distribution of "
        "contexts, falls short of the largest one. Cumulative regret adds it up over the rounds, "
        f"initial points apart; late regret is its mean over the last {LAST_ROUNDS} rounds. Mean ± "
        "standard error over seeds, with Student's 95 % interval; lower is better. Differences "
        f"are paired by seed with `{suite.baseline}`; in parentheses, Wilcoxon's two-sided "
        "p-values, not corrected. Times are in seconds: per round, and of a run of all rounds."
    )


def _problem_table(rows: Sequence[Comparison], baseline: str) -> list[str]:
    header = [
        "method",
        "seeds",
        "cumulative regret",
        "95 % interval",
        f"to {baseline}",
        "late regret",
        f"to {baseline}",
        "fit s",
        "acquisition s",
        "run s",
    ]
    body = [
        [
            row.method,
            str(len(row.cumulative)),
            estimate(Estimate.of(row.cumulative)),
            interval(row.cumulative, ".3g"),
            difference(row.versus, row.method != baseline),
            estimate(row.late),
            difference(row.late_versus, row.method != baseline),
            number(row.fit_seconds),
            number(row.acquisition_seconds),
            number(row.run_seconds),
        ]
        for row in rows
    ]
    return table(header, body)


def _summary_table(suite: Suite[Any, Any], collected: Mapping[str, ByMethod]) -> list[str]:
    baseline = suite.baseline
    header = [
        "method",
        "problems",
        "significantly better",
        "significantly worse",
        f"cumulative regret to {baseline}, %",
        "run s",
        f"time / {baseline}",
    ]
    body = []
    for method in dict.fromkeys(name for runs in collected.values() for name in runs):
        chosen = [runs for runs in collected.values() if method in runs]
        rows = [compare(method, runs, baseline) for runs in chosen]
        better, worse = metrics.count_significant([row.versus for row in rows])
        compared = method != baseline
        body.append(
            [
                method,
                str(len(rows)),
                str(better) if compared else "–",
                str(worse) if compared else "–",
                pooled_difference(chosen, method, baseline, cumulative_regret) if compared else "–",
                number(float(np.mean([row.run_seconds for row in rows]))),
                _slowdown(chosen, method, baseline) if compared else "–",
            ]
        )
    note = (
        f"Significant is Wilcoxon's test of cumulative regret against `{baseline}`, at 5 % after "
        "Holm's correction for the number of problems. Percent: regret in units of the baseline's "
        "mean on each problem, averaged over problems for each seed, then compared over seeds. "
        "The last column is the geometric mean over problems of the ratio of times."
    )
    return [*table(header, body), "", note]


def _slowdown(chosen: Sequence[ByMethod], method: str, baseline: str) -> str:
    """The geometric mean of the ratio of times."""
    ratios = [
        np.mean([seconds(r) for r in runs[method]]) / np.mean([seconds(r) for r in runs[baseline]])
        for runs in chosen
        if baseline in runs
    ]
    return f"{float(np.exp(np.mean(np.log(ratios)))):.2f} x" if ratios else "–"


def robust_figure(collected: Mapping[str, Mapping[str, Sequence[Result]]]) -> Figure:
    """One panel per problem: mean cumulative regret by round, with bands of one standard error."""
    from benchmarks.framework.plots import draw_mean, method_colors, panel_grid, share_legend

    figure, panels = panel_grid(len(collected), COLUMNS, (5.5, 4.0))
    colors = method_colors(collected)
    for panel, (problem, by_method) in zip(panels, collected.items(), strict=True):
        for method, results in by_method.items():
            curves = np.array([trace(result, "cumulative_regret") for result in results])
            style = "--" if method in DASHED else "-"
            draw_mean(panel, method, curves, style, first=1, alpha=0.15, color=colors[method])
        panel.set(title=problem, xlabel="round", ylabel="cumulative expected regret")
    share_legend(figure, panels)
    return figure
