"""The report of the suites that compare calibrators: regret and calibration, and a summary."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.framework import metrics
from benchmarks.framework.markdown import estimate, number, table
from benchmarks.framework.metrics import Estimate, PairedTest
from benchmarks.framework.sequential import Result
from benchmarks.suites import Suite

ByMethod = Mapping[str, Sequence[Result]]

SIGNIFICANCE = 0.05
POINTS = {
    "outcome": "point with the largest outcome",
    "mean": "point with the largest posterior mean",
    "evaluated": "best point evaluated",
}


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
        versus_baseline=metrics.paired_test(final, reference),
        fraction_won=metrics.fraction_won(final, reference),
        area=Estimate.of([metrics.area_under_regret(r, inference, scale) for r in results]),
        miscoverage=Estimate.of([metrics.miscoverage(r) for r in results]),
        calibration_error=Estimate.of([metrics.calibration_error(r) for r in results]),
        seconds=float(np.mean([np.add(r.fit_seconds, r.acquisition_seconds) for r in results])),
    )


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
    adjusted = metrics.holm([c.versus_baseline.wilcoxon_p_value for c in comparisons])
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


def comparison_lines(suite: Suite, collected: Mapping[str, ByMethod]) -> list[str]:
    """The body of the report: a legend, the summary and one table for each problem."""
    by_problem = {
        problem: [
            compare(results, by_method.get(suite.baseline, []), suite.inference)
            for results in by_method.values()
        ]
        for problem, by_method in collected.items()
    }
    rows = [row for rows in by_problem.values() for row in rows]
    names = dict.fromkeys(row.method for row in rows)
    summary = [overall([r for r in rows if r.method == name], suite.alpha) for name in names]
    lines = [*_legend(suite), "## All problems", "", *_summary_table(summary, suite), ""]
    lines += [*_pooled_table(suite, collected), ""]
    for problem, comparisons in by_problem.items():
        lines += [f"## {problem}", "", *_problem_table(comparisons, suite.baseline), ""]
    return lines


def _legend(suite: Suite) -> list[str]:
    text = (
        f"Final simple regret f(x*) - f(x) at the {POINTS[suite.inference]}, and beside it at the "
        "one with the largest posterior mean: "
        "mean ± standard error over seeds, lower is better. Differences are paired by seed with "
        f"`{suite.baseline}`; p-values are two-sided and not corrected. Won is the fraction of "
        "seeds with less regret than the baseline, ties being halves. Area is the mean over "
        "evaluations of the least regret so far, in units of the mean regret of the initial "
        f"designs. Miscoverage is that of the stated {100 * (1 - suite.alpha):g} % intervals over "
        f"the last half of the evaluations and should be {suite.alpha:g}. The calibration error "
        "sums the squared gaps between levels and observed frequencies of PITs over 19 levels; "
        "by chance alone it is about 3.3 over the number of evaluations. Times are per "
        "evaluation."
    )
    return [text, ""]


def _summary_table(rows: Sequence[Overall], suite: Suite) -> list[str]:
    header = [
        "method",
        "problems",
        "significantly better",
        "significantly worse",
        "won",
        "area",
        f"mean gap of miscoverage to {suite.alpha:g}",
    ]
    body = []
    for row in rows:
        compared = row.method != suite.baseline
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
        "Significant is Wilcoxon's test at 5 % after Holm's correction for the number of problems."
    )
    return [*table(header, body), "", note]


def _pooled_table(suite: Suite, collected: Mapping[str, ByMethod]) -> list[str]:
    """Differences to the baseline pooled over all problems, and over each group of them."""
    header = ["problems", "method", f"difference to {suite.baseline}, %", "t-test p", "Wilcoxon p"]
    body = []
    for group in ("", *suite.groups):
        chosen = [runs for name, runs in collected.items() if name.endswith(group)]
        for method in dict.fromkeys(name for runs in chosen for name in runs):
            both = [r for r in chosen if method in r and suite.baseline in r]
            if method == suite.baseline or not both:
                continue
            own, reference = (
                [metrics.final_regrets(runs[name], suite.inference) for runs in both]
                for name in (method, suite.baseline)
            )
            test = metrics.pooled_test(own, reference)
            percent = Estimate(100 * test.difference.mean, 100 * test.difference.standard_error)
            p_values = [number(test.t_p_value, 2), number(test.wilcoxon_p_value, 2)]
            body.append([group or "all", method, estimate(percent), *p_values])
    note = (
        "Averaged over problems for each seed, in percent of the baseline's mean regret on each "
        "problem, then compared over seeds; p-values are not corrected, and the groups are views "
        "of the same runs. A problem on which the baseline's regret is close to zero rules the "
        "average of those which fail there."
    )
    return [*table(header, body), "", note]


def _problem_table(rows: Sequence[Comparison], baseline: str) -> list[str]:
    header = [
        "method",
        "seeds",
        "regret",
        f"difference to {baseline}",
        "t-test p",
        "Wilcoxon p",
        "won",
        "regret, posterior mean",
        "area",
        "miscoverage",
        "calibration error",
        "s",
    ]
    body = []
    for row in rows:
        test, compared = row.versus_baseline, row.method != baseline
        body.append(
            [
                row.method,
                str(row.seeds),
                estimate(row.regret),
                estimate(test.difference) if compared else "–",
                number(test.t_p_value, 2) if compared else "–",
                number(test.wilcoxon_p_value, 2) if compared else "–",
                number(row.fraction_won) if compared else "–",
                estimate(row.regret_by_mean),
                estimate(row.area),
                estimate(row.miscoverage),
                estimate(row.calibration_error),
                number(row.seconds),
            ]
        )
    return table(header, body)
