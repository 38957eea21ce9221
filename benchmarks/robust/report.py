"""The report of suites with contexts: regret in expectation over their law, and time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.framework import metrics
from benchmarks.framework.markdown import estimate, number, table
from benchmarks.framework.metrics import Estimate, PairedTest
from benchmarks.framework.sequential import Result
from benchmarks.suites import Suite

ByMethod = Mapping[str, Sequence[Result]]
Score = Callable[[Result], float]

SIGNIFICANCE = 0.05
LAST_ROUNDS = 20


def cumulative_regret(result: Result) -> float:
    """Over all rounds (eq. 11)."""
    return metrics.trace(result, "cumulative_regret")[-1]


def late_regret(result: Result) -> float:
    """The mean regret of a round (eq. 10) over the last rounds."""
    return float(np.mean(metrics.trace(result, "regret")[-LAST_ROUNDS:]))


def seconds(result: Result) -> float:
    """Time of the whole run, fits and choices together."""
    return sum(result.fit_seconds) + sum(result.acquisition_seconds)


def by_seed(results: Sequence[Result], score: Score) -> dict[int, float]:
    """A score for each seed."""
    return {result.seed: score(result) for result in results}


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


def robust_lines(suite: Suite[Any, Any], collected: Mapping[str, ByMethod]) -> list[str]:
    """The body of the report: a legend, a summary and a table for each problem."""
    lines = [_legend(suite), "", "## All problems", "", *_summary_table(suite, collected), ""]
    for problem, by_method in collected.items():
        rows = [compare(method, by_method, suite.baseline) for method in by_method]
        lines += [f"## {problem}", "", *_problem_table(rows, suite.baseline), ""]
    return lines


def _legend(suite: Suite[Any, Any]) -> str:
    return (
        "Regret of a round is what the decisions' expected value, under the true law of contexts, "
        "falls short of the largest one. Cumulative regret adds it up over the rounds, initial "
        f"points apart; late regret is its mean over the last {LAST_ROUNDS} rounds. Mean ± "
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
            interval(row.cumulative),
            _difference(row.versus, row.method != baseline),
            estimate(row.late),
            _difference(row.late_versus, row.method != baseline),
            number(row.fit_seconds),
            number(row.acquisition_seconds),
            number(row.run_seconds),
        ]
        for row in rows
    ]
    return table(header, body)


def _difference(test: PairedTest, compared: bool) -> str:
    if not compared or test.pairs == 0:
        return "–"
    return f"{estimate(test.difference)} ({number(test.wilcoxon_p_value, 2)})"


def interval(values: Sequence[float]) -> str:
    """Student's 95 % interval of a mean; a dash for fewer than two values."""
    if len(values) < 2:
        return "–"
    mean, error = float(np.mean(values)), float(stats.sem(values))
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return f"{mean - reach:.3g} to {mean + reach:.3g}"


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
        better, worse = _decided(rows)
        compared = method != baseline
        body.append(
            [
                method,
                str(len(rows)),
                str(better) if compared else "–",
                str(worse) if compared else "–",
                _pooled(chosen, method, baseline) if compared else "–",
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


def _decided(rows: Sequence[Comparison]) -> tuple[int, int]:
    """On how many problems a method is significantly better, and worse, than the baseline."""
    adjusted = metrics.holm([row.versus.wilcoxon_p_value for row in rows])
    signs = [
        math.copysign(1.0, row.versus.difference.mean)
        for row, p in zip(rows, adjusted, strict=True)
        if p < SIGNIFICANCE
    ]
    return signs.count(-1.0), signs.count(1.0)


def _pooled(chosen: Sequence[ByMethod], method: str, baseline: str) -> str:
    """The difference over all problems, in percent, with its p-value."""
    pairs = [
        (by_seed(runs[method], cumulative_regret), by_seed(runs[baseline], cumulative_regret))
        for runs in chosen
        if baseline in runs
    ]
    if not pairs:
        return "–"
    test = metrics.pooled_test(*map(list, zip(*pairs, strict=True)))
    percent = Estimate(100 * test.difference.mean, 100 * test.difference.standard_error)
    return f"{estimate(percent)} ({number(test.wilcoxon_p_value, 2)})"


def _slowdown(chosen: Sequence[ByMethod], method: str, baseline: str) -> str:
    """The geometric mean of the ratio of times."""
    ratios = [
        np.mean([seconds(r) for r in runs[method]]) / np.mean([seconds(r) for r in runs[baseline]])
        for runs in chosen
        if baseline in runs
    ]
    return f"{float(np.exp(np.mean(np.log(ratios)))):.2f} x" if ratios else "–"
