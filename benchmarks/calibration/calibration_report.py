"""The report of the suites that compare calibrators: regret and calibration, and a summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from benchmarks.calibration.methods import ALPHA
from benchmarks.framework import metrics, statistics
from benchmarks.framework.markdown import (
    estimate,
    number,
    paired_cells,
    paired_header,
    percent,
    table,
)
from benchmarks.framework.plots import regret_figure
from benchmarks.framework.results import Collected, Result, by_seed, methods_in
from benchmarks.framework.statistics import SIGNIFICANCE, Estimate, PairedTest
from benchmarks.framework.suite import Suite

POINTS = {
    "outcome": "point with the largest outcome",
    "mean": "point with the largest posterior mean",
    "evaluated": "best point evaluated",
}


@dataclass(frozen=True)
class CalibrationReport:
    """Regret and calibration, with a summary over all problems.

    Args:
        inference: The point whose regret is compared, see `metrics.regret_trace`.
        alpha: The miscoverage that the stated intervals should have.
    """

    inference: str = "outcome"
    alpha: float = ALPHA

    def lines(self, suite: Suite, collected: Collected) -> list[str]:
        """A legend, the summary and one table for each problem."""
        by_problem = {
            problem: [
                compare(results, by_method.get(suite.baseline, []), self.inference)
                for results in by_method.values()
            ]
            for problem, by_method in collected.items()
        }
        rows = [row for rows in by_problem.values() for row in rows]
        names = dict.fromkeys(row.method for row in rows)
        summary = [overall([r for r in rows if r.method == name], self.alpha) for name in names]
        legend = self._legend(suite.baseline, _knows_objective(rows))
        lines = [*legend, "## All problems", ""]
        lines += [*self._summary_table(summary, suite.baseline), ""]
        lines += [*self._pooled_table(collected, suite.baseline), ""]
        for problem, comparisons in by_problem.items():
            lines += [f"## {problem}", "", *_problem_table(comparisons, suite.baseline), ""]
        return lines

    def figure(self, collected: Collected) -> Figure:
        """Regret curves."""
        return regret_figure(collected, self.inference)

    def _legend(self, baseline: str, recorded: bool) -> list[str]:
        text = (
            f"Final simple regret f(x*) - f(x) at the {POINTS[self.inference]}, and beside it at "
            "the one with the largest posterior mean: "
            "mean ± standard error over seeds, lower is better. Differences are paired by seed "
            f"with `{baseline}`; p-values are two-sided and not corrected. Won is the fraction of "
            "seeds with less regret than the baseline; ties count as halves. Area is the mean over "
            "evaluations of the least regret so far, in units of the mean regret of the initial "
            f"designs. Miscoverage is that of the stated {100 * (1 - self.alpha):g} % intervals "
            f"over the last half of the evaluations and should be {self.alpha:g}. The calibration "
            "error sums the squared gaps between levels and observed frequencies of PITs over 19 "
            "levels; by chance alone it is about 3.3 over the number of evaluations. Times are per "
            "evaluation."
        )
        if recorded:
            text += (
                " Coverage of f is that of the final model's intervals of the objective, at the "
                "points evaluated and in the box."
            )
        return [text, ""]

    def _summary_table(self, rows: Sequence[Overall], baseline: str) -> list[str]:
        header = [
            "method",
            "problems",
            "significantly better",
            "significantly worse",
            "won",
            "area",
            f"mean gap of miscoverage to {self.alpha:g}",
        ]
        body = []
        for row in rows:
            compared = row.method != baseline
            body.append(
                [
                    row.method,
                    str(row.problems),
                    str(row.better) if compared else "–",
                    str(row.worse) if compared else "–",
                    number(row.mean_fraction_won) if compared else "–",
                    number(row.mean_area),
                    number(row.coverage_gap),
                ]
            )
        note = (
            "Significant is Wilcoxon's test at 5 % after Holm's correction for the number of "
            "problems."
        )
        return [*table(header, body), "", note]

    def _pooled_table(self, collected: Collected, baseline: str) -> list[str]:
        """Differences to the baseline pooled over all problems."""
        # There is no percentage of nothing.
        solved = [
            problem
            for problem, runs in collected.items()
            if baseline in runs
            and not any(metrics.final_regrets(runs[baseline], self.inference).values())
        ]
        chosen = [runs for name, runs in collected.items() if name not in solved]
        body = []
        for method in methods_in(chosen):
            both = [runs for runs in chosen if method in runs and baseline in runs]
            if method == baseline or not both:
                continue
            own, reference = (
                [metrics.final_regrets(runs[name], self.inference) for runs in both]
                for name in (method, baseline)
            )
            test = statistics.pooled_test(own, reference)
            p_values = [number(test.t_p_value, 2), number(test.wilcoxon_p_value, 2)]
            body.append([method, estimate(percent(test)), *p_values])
        note = (
            "Averaged over problems for each seed, in percent of the baseline's mean regret on "
            "each problem, then compared over seeds; p-values are not corrected. A problem on "
            "which the baseline's regret is close to zero dominates the average of the methods "
            "that fail there."
        )
        if solved:
            note += f" Without {', '.join(solved)}, where {baseline} has no regret in any run."
        header = ["method", f"difference to {baseline}, %", "t-test p", "Wilcoxon p"]
        return [*table(header, body), "", note]


UNKNOWN = Estimate(math.nan, math.nan)


@dataclass(frozen=True)
class Comparison:
    """One method on one problem, against the baseline."""

    method: str
    seeds: int
    regret: Estimate
    regret_by_mean: Estimate
    versus_baseline: PairedTest
    fraction_won: float
    area: Estimate
    miscoverage: Estimate
    calibration_error: Estimate
    seconds: float
    # Coverage of the objective, where results hold it
    covered_visited: Estimate = UNKNOWN
    covered_in_box: Estimate = UNKNOWN


def compare(results: Sequence[Result], baseline: Sequence[Result], inference: str) -> Comparison:
    """Judge one method's results on one problem.

    Args:
        results: Its results.
        baseline: Those of the baseline, which also set the unit of areas.
        inference: See `metrics.regret_trace`.
    """
    final = metrics.final_regrets(results, inference)
    reference = metrics.final_regrets(baseline, inference)
    scale = metrics.initial_scale(baseline, inference) if baseline else math.nan
    return Comparison(
        method=results[0].method,
        seeds=len(results),
        regret=Estimate.of(list(final.values())),
        regret_by_mean=Estimate.of(_by_mean(results)),
        versus_baseline=statistics.paired_test(final, reference),
        fraction_won=statistics.fraction_won(final, reference),
        area=Estimate.of([metrics.area_under_regret(r, inference, scale) for r in results]),
        miscoverage=Estimate.of([metrics.miscoverage(r) for r in results]),
        calibration_error=Estimate.of([metrics.calibration_error(r) for r in results]),
        seconds=float(np.mean([metrics.seconds_per_evaluation(r) for r in results])),
        covered_visited=_objective_coverage(results, "visited"),
        covered_in_box=_objective_coverage(results, "box"),
    )


def _objective_coverage(results: Sequence[Result], place: str) -> Estimate:
    values = by_seed(results, lambda r: metrics.objective_coverage(r, place))
    return Estimate.of(list(values.values()))


def _by_mean(results: Sequence[Result]) -> list[float]:
    return [r.regret_by_mean[-1] for r in results if r.regret_by_mean is not None]


@dataclass(frozen=True)
class Overall:
    """One method over all problems of a suite; counts are of significant differences."""

    method: str
    problems: int
    better: int
    worse: int
    mean_fraction_won: float
    mean_area: float
    coverage_gap: float


def overall(comparisons: Sequence[Comparison], alpha: float) -> Overall:
    """Summarise one method's comparisons on all problems.

    Differences count as significant if Wilcoxon's test says so at 5 % after Holm's correction
    for the number of problems. Their sign is read off the seeds won: one bad seed can
    turn that of the mean.
    """
    adjusted = statistics.holm([c.versus_baseline.wilcoxon_p_value for c in comparisons])
    pairs = zip(comparisons, adjusted, strict=True)
    decided = [comparison.fraction_won for comparison, p in pairs if p < SIGNIFICANCE]
    return Overall(
        method=comparisons[0].method,
        problems=len(comparisons),
        better=sum(won > 0.5 for won in decided),
        worse=sum(won < 0.5 for won in decided),
        mean_fraction_won=float(np.mean([c.fraction_won for c in comparisons])),
        mean_area=float(np.mean([c.area.mean for c in comparisons])),
        coverage_gap=float(np.mean([abs(c.miscoverage.mean - alpha) for c in comparisons])),
    )


def _knows_objective(rows: Sequence[Comparison]) -> bool:
    """Whether any result tells of the coverage of the objective, as older ones do not."""
    return any(not math.isnan(row.covered_visited.mean) for row in rows)


def _problem_table(rows: Sequence[Comparison], baseline: str) -> list[str]:
    header = [
        "method",
        "seeds",
        "regret",
        *paired_header(baseline),
        "won",
        "regret, posterior mean",
        "area",
        "miscoverage",
        "calibration error",
        "s",
    ]
    recorded = _knows_objective(rows)
    if recorded:
        header[-1:-1] = ["coverage of f, visited", "coverage of f, box"]
    body = []
    for row in rows:
        of_objective = [estimate(row.covered_visited), estimate(row.covered_in_box)]
        compared = row.method != baseline
        body.append(
            [
                row.method,
                str(row.seeds),
                estimate(row.regret),
                *paired_cells(row.versus_baseline, compared),
                number(row.fraction_won) if compared else "–",
                estimate(row.regret_by_mean),
                estimate(row.area),
                estimate(row.miscoverage),
                estimate(row.calibration_error),
                *(of_objective if recorded else []),
                number(row.seconds),
            ]
        )
    return table(header, body)
