"""The report of suites under delayed feedback: regret of what has arrived, and of all queries."""

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

# Each method is compared with the one of its kind that ignores delays, and with this one.
PENDING = "qlogei_pending"
SIGNIFICANCE = 0.05

# Means at round 100 that the paper's figure 2 shows; it gives no numbers for their spread.
PUBLISHED_SVM = {
    "svm_poisson": {
        "ucb_sdf": 0.757,
        "ucb": 0.710,
        "ucb_hallucinate": 0.733,
        "ts_sdf": 0.767,
        "ts": 0.758,
        "ts_hallucinate": 0.768,
    },
    "svm_fixed": {
        "ucb_sdf": 0.764,
        "ucb": 0.715,
        "ucb_hallucinate": 0.722,
        "ts_sdf": 0.768,
        "ts": 0.768,
        "ts_hallucinate": 0.761,
    },
}


def simple_regret(result: Result) -> float:
    """At the end, of the queries whose values arrived in time; NaN with contexts."""
    return (
        metrics.trace(result, "simple_regret")[-1] if "simple_regret" in result.extras else math.nan
    )


def mean_simple_regret(result: Result) -> float:
    """Averaged over rounds; NaN with contexts."""
    if "simple_regret" not in result.extras:
        return math.nan
    return float(np.mean(metrics.trace(result, "simple_regret")[1:]))


def cumulative_regret(result: Result) -> float:
    """At the end, of the queries whose values arrived in time."""
    return metrics.trace(result, "cumulative_regret")[-1]


def cumulative_regret_all(result: Result) -> float:
    """At the end, of all queries."""
    return metrics.trace(result, "cumulative_regret_all")[-1]


def by_seed(results: Sequence[Result], score: Score) -> dict[int, float]:
    """A score for each seed, those without one left out."""
    scores = {result.seed: score(result) for result in results}
    return {seed: value for seed, value in scores.items() if not math.isnan(value)}


def counterpart(method: str, baseline: str, known: Sequence[str]) -> str:
    """The method of the same kind that ignores delays: ``ts`` for Thompson sampling."""
    kind = method.partition("_")[0]
    return "ts" if kind == "ts" and "ts" in known else baseline


@dataclass(frozen=True)
class Comparison:
    """One method on one problem, against its counterpart and against `PENDING`."""

    method: str
    counterpart: str
    seeds: int
    simple: Estimate
    simple_versus: tuple[PairedTest, PairedTest]
    arrived: Estimate
    every: Estimate
    every_versus: tuple[PairedTest, PairedTest]
    fit_seconds: float
    acquisition_seconds: float

    @property
    def decisive(self) -> PairedTest:
        """Against the counterpart: of simple regret, or of cumulative regret with contexts."""
        return self.every_versus[0] if math.isnan(self.simple.mean) else self.simple_versus[0]


def compare(method: str, by_method: ByMethod, baseline: str) -> Comparison:
    """Judge one method's results on one problem."""
    results = by_method[method]
    ignoring = counterpart(method, baseline, list(by_method))
    references = [by_method.get(name, []) for name in (ignoring, PENDING)]

    def versus(score: Score) -> tuple[PairedTest, PairedTest]:
        first, second = (
            metrics.paired_test(by_seed(results, score), by_seed(reference, score))
            for reference in references
        )
        return first, second

    def mean(score: Score) -> Estimate:
        return Estimate.of(list(by_seed(results, score).values()))

    return Comparison(
        method=method,
        counterpart=ignoring,
        seeds=len(results),
        simple=mean(simple_regret),
        simple_versus=versus(simple_regret),
        arrived=mean(cumulative_regret),
        every=mean(cumulative_regret_all),
        every_versus=versus(cumulative_regret_all),
        fit_seconds=float(np.mean([r.fit_seconds for r in results])),
        acquisition_seconds=float(np.mean([r.acquisition_seconds for r in results])),
    )


def delay_lines(suite: Suite[Any, Any], collected: Mapping[str, ByMethod]) -> list[str]:
    """The body of the report: a legend, a summary, published numbers, a table for each problem."""
    lines = [_legend(suite), "", "## All problems", "", *_summary_table(suite, collected), ""]
    if any(problem in PUBLISHED_SVM for problem in collected):
        lines += ["## Beside the published means", "", *_published_table(collected), ""]
    for problem, by_method in collected.items():
        rows = [compare(method, by_method, suite.baseline) for method in by_method]
        lines += [f"## {problem}", "", *_problem_table(rows), ""]
    return lines


def _legend(suite: Suite[Any, Any]) -> str:
    return (
        "Simple regret is the optimum minus the largest noise-free value of the queries whose "
        "values had arrived by the end; initial points count. Cumulative regret is that of the "
        "queries whose values arrived, and of all queries. All: mean ± standard error over seeds, "
        "lower is better. Differences are paired by seed, with the method of the same kind that "
        f"ignores delays (`ts` for Thompson sampling, else `{suite.baseline}`) and with "
        f"`{PENDING}`; in parentheses, Wilcoxon's two-sided p-values, not corrected. Times are "
        "per choice."
    )


def _difference(test: PairedTest, compared: bool) -> str:
    if not compared or test.pairs == 0:
        return "–"
    return f"{estimate(test.difference)} ({number(test.wilcoxon_p_value, 2)})"


def _problem_table(rows: Sequence[Comparison]) -> list[str]:
    header = [
        "method",
        "seeds",
        "simple regret",
        "to ignoring",
        f"to {PENDING}",
        "cumulative, arrived",
        "cumulative, all",
        "to ignoring",
        f"to {PENDING}",
        "fit s",
        "acquisition s",
    ]
    body = []
    for row in rows:
        compared = (row.method != row.counterpart, row.method != PENDING)
        body.append(
            [
                row.method,
                str(row.seeds),
                estimate(row.simple),
                *map(_difference, row.simple_versus, compared),
                estimate(row.arrived),
                estimate(row.every),
                *map(_difference, row.every_versus, compared),
                number(row.fit_seconds),
                number(row.acquisition_seconds),
            ]
        )
    return table(header, body)


def _summary_table(suite: Suite[Any, Any], collected: Mapping[str, ByMethod]) -> list[str]:
    header = [
        "method",
        "problems",
        "significantly better",
        "significantly worse",
        "simple regret to ignoring, %",
        "cumulative regret to ignoring, %",
        f"simple regret to {PENDING}, %",
        f"cumulative regret to {PENDING}, %",
    ]
    body = []
    for method in dict.fromkeys(name for runs in collected.values() for name in runs):
        chosen = [runs for runs in collected.values() if method in runs]
        rows = [compare(method, runs, suite.baseline) for runs in chosen]
        compared = method != rows[0].counterpart
        better, worse = _decided(rows)
        cells = [method, str(len(rows)), str(better), str(worse)]
        for reference in (rows[0].counterpart, PENDING):
            for score in (mean_simple_regret, cumulative_regret_all):
                cells.append(_pooled(chosen, method, reference, score))
        body.append(cells if compared else [*cells[:2], "–", "–", *cells[4:]])
    note = (
        "Significant is Wilcoxon's test, at 5 % after Holm's correction for the number of "
        "problems, on final simple regret (with contexts, cumulative regret of all queries) "
        "against the method that ignores delays. The other columns pool problems: regret in "
        "percent of the "
        "reference's mean on each problem, averaged over problems for each seed, then compared "
        "over seeds; here simple regret is averaged over rounds."
    )
    return [*table(header, body), "", note]


def _decided(rows: Sequence[Comparison]) -> tuple[int, int]:
    """On how many problems a method is significantly better, and worse, than its counterpart."""
    tests = [row.decisive for row in rows]
    adjusted = metrics.holm([test.wilcoxon_p_value for test in tests])
    signs = [
        math.copysign(1.0, test.difference.mean)
        for test, p in zip(tests, adjusted, strict=True)
        if p < SIGNIFICANCE
    ]
    return signs.count(-1.0), signs.count(1.0)


def _pooled(chosen: Sequence[ByMethod], method: str, reference: str, score: Score) -> str:
    """The difference over all problems that have the score, in percent, with its p-value."""
    if method == reference:
        return "–"
    pairs = [
        (by_seed(runs[method], score), by_seed(runs[reference], score))
        for runs in chosen
        if reference in runs
    ]
    pairs = [(own, other) for own, other in pairs if own and other and any(other.values())]
    if not pairs:
        return "–"
    test = metrics.pooled_test(*map(list, zip(*pairs, strict=True)))
    percent = Estimate(100 * test.difference.mean, 100 * test.difference.standard_error)
    return f"{estimate(percent)} ({number(test.wilcoxon_p_value, 2)})"


def _published_table(collected: Mapping[str, ByMethod]) -> list[str]:
    header = ["problem", "method", "seeds", "accuracy", "95 % interval", "published", "difference"]
    body = []
    for problem in PUBLISHED_SVM.keys() & collected.keys():
        for method, results in collected[problem].items():
            values = [metrics.trace(result, "best_arrived")[-1] for result in results]
            published = PUBLISHED_SVM[problem].get(method, math.nan)
            body.append(
                [
                    problem,
                    method,
                    str(len(values)),
                    estimate(Estimate.of(values)),
                    _interval(values),
                    number(published),
                    number(float(np.mean(values)) - published, 2),
                ]
            )
    note = (
        "The largest validation accuracy that had arrived by the last round: mean ± standard error "
        "over seeds, with Student's interval for the mean; higher is better. The published means "
        "come without a spread, and from a split of the data that is not known."
    )
    return [*table(header, sorted(body, key=lambda cells: cells[0], reverse=True)), "", note]


def _interval(values: Sequence[float]) -> str:
    if len(values) < 2:
        return "–"
    mean, error = float(np.mean(values)), float(stats.sem(values))
    reach = float(stats.t.ppf(0.975, len(values) - 1)) * error
    return f"{mean - reach:.3f} to {mean + reach:.3f}"
