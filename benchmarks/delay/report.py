"""The report of suites under delayed feedback: regret of what has arrived, and of all queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework import statistics
from benchmarks.framework.comparisons import differences, family, percent_of_logarithms
from benchmarks.framework.markdown import (
    difference,
    estimate,
    interval,
    number,
    pooled_difference,
    table,
)
from benchmarks.framework.metrics import trace
from benchmarks.framework.plots import draw_mean, method_colors, panel_grid, share_legend
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.results import (
    ByMethod,
    Collected,
    Result,
    Score,
    by_seed,
    methods_in,
    seed_means,
)
from benchmarks.framework.statistics import Estimate, PairedTest
from benchmarks.framework.suite import Suite

# Each method is compared with the one of its kind that ignores delays, and with this one.
PENDING = "qlogei_pending"


# Simple regret, averaged over rounds, below which it makes no difference to anyone: one held-out
# point's worth. It keeps a lucky start from ruling the mean of logarithms.
FLOOR = 5e-3

# Means at round 100 of the paper's figure 2, with the standard errors of the ten runs each that lie
# in the authors' repository (github.com/daizhongxiang/BO-SDF).
PUBLISHED_SVM = {
    "svm_poisson": {
        "ucb_sdf": Estimate(0.757, 0.0075),
        "ucb": Estimate(0.710, 0.0153),
        "ucb_hallucinate": Estimate(0.733, 0.01446),
        "ts_sdf": Estimate(0.767, 0.0026),
        "ts": Estimate(0.758, 0.0123),
        "ts_hallucinate": Estimate(0.768, 0.0028),
    },
    "svm_fixed": {
        "ucb_sdf": Estimate(0.764, 0.0015),
        "ucb": Estimate(0.715, 0.0172),
        "ucb_hallucinate": Estimate(0.722, 0.0176),
        "ts_sdf": Estimate(0.768, 0.0029),
        "ts": Estimate(0.768, 0.0030),
        "ts_hallucinate": Estimate(0.761, 0.0057),
    },
}


@dataclass(frozen=True)
class DelayReport:
    """Regret of what has arrived and of all queries, beside methods that ignore delays.

    Args:
        primary: The methods of the comparisons that the protocol declares as primary, the first of
            a pair beside the second; those of each method with the one that ignores delays and with
            `PENDING` are secondary. Without a protocol nothing is declared.
    """

    primary: tuple[tuple[str, str], ...] = ()

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """Comparisons that are declared, a summary, published numbers and a table by problem."""
        lines = []
        if suite.protocol is not None:  # which states the margin
            lines += ["## Comparisons", "", *self._comparisons(suite, collected), ""]
        lines += [_legend(suite), "", "## All problems", "", *_summary_table(suite, collected), ""]
        if any(problem in PUBLISHED_SVM for problem in collected):
            lines += ["## Beside the published means", "", *published_table(collected), ""]
        for problem, by_method in collected.items():
            rows = [compare(method, by_method, suite.baseline) for method in by_method]
            lines += [f"## {problem}", "", *_problem_table(rows), ""]
        return lines

    def figure(self, collected: Collected) -> Figure:
        """Regret curves."""
        return delay_figure(collected)

    def _comparisons(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """Simple regret over all problems, and cumulative regret beside it."""
        margin = margin_of(suite)
        scores = (log_simple_regret, log_cumulative_regret)
        simple, cumulative = (
            {m.name: seed_means(list(collected.values()), m.name, score) for m in suite.methods}
            for score in scores
        )
        rows = []
        for name, pairs in (("primary", self.primary), ("secondary", self._secondary(suite))):
            found = family({(own, other): (simple[own], simple[other]) for own, other in pairs})
            for (own, other), difference_found in found.items():
                beside = percent_of_logarithms(differences(cumulative[own], cumulative[other]))
                rows.append([name, own, other, *difference_found.percent_cells(margin), *beside])
        note = (
            "How much more or less simple regret the first method has than the second, in percent. "
            "The regret is that of the values that have arrived, averaged over rounds "
            f"({FLOOR:g} at the least); the percentage is the mean of the differences of "
            "logarithms, averaged over the problems for each seed. p is Wilcoxon's, two-sided, "
            "after Holm's correction within the family; detectable is the difference found with a "
            "power of 80 % at its strictest step. The last columns compare the cumulative regret "
            "of all queries, without tests."
        )
        header = ["family", "regret of", "compared with", "seeds", "difference", "95 % interval"]
        verdict = f"verdict (margin {100 * math.expm1(margin):.0f} %)"
        header += ["corrected p", verdict, "detectable"]
        header += ["difference of cumulative regret", "95 % interval"]
        return [note, "", *table(header, rows)]

    def _secondary(self, suite: Suite[Any, Any]) -> list[tuple[str, str]]:
        """All other pairs of a method with the one that ignores delays or with `PENDING`."""
        names = [method.name for method in suite.methods]
        beside = [(name, counterpart(name, suite.baseline, names)) for name in names]
        beside += [(name, PENDING) for name in names]
        pairs: dict[frozenset[str], tuple[str, str]] = {}
        for pair in beside:
            pairs.setdefault(frozenset(pair), pair)
        declared = {frozenset(pair) for pair in self.primary}
        return [pair for both, pair in pairs.items() if len(both) == 2 and both not in declared]


def simple_regret(result: Result) -> float:
    """At the end, of the queries whose values arrived in time."""
    return trace(result, "simple_regret")[-1]


def mean_simple_regret(result: Result) -> float:
    """Averaged over rounds."""
    return float(np.mean(trace(result, "simple_regret")[1:]))


def log_simple_regret(result: Result) -> float:
    """Natural logarithm of `mean_simple_regret`, of `FLOOR` at the least."""
    return math.log(max(mean_simple_regret(result), FLOOR))


def log_cumulative_regret(result: Result) -> float:
    """Natural logarithm of `cumulative_regret_all`."""
    return math.log(cumulative_regret_all(result))


def cumulative_regret(result: Result) -> float:
    """At the end, of the queries whose values arrived in time."""
    return trace(result, "cumulative_regret")[-1]


def cumulative_regret_all(result: Result) -> float:
    """At the end, of all queries."""
    return trace(result, "cumulative_regret_all")[-1]


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


def compare(method: str, by_method: ByMethod, baseline: str) -> Comparison:
    """Judge one method's results on one problem."""
    results = by_method[method]
    ignoring = counterpart(method, baseline, list(by_method))
    references = [by_method.get(name, []) for name in (ignoring, PENDING)]

    def versus(score: Score) -> tuple[PairedTest, PairedTest]:
        first, second = (
            statistics.paired_test(by_seed(results, score), by_seed(reference, score))
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
                *map(difference, row.simple_versus, compared),
                estimate(row.arrived),
                estimate(row.every),
                *map(difference, row.every_versus, compared),
                number(row.fit_seconds),
                number(row.acquisition_seconds),
            ]
        )
    return table(header, body)


def _summary_table(suite: Suite[Any, Any], collected: Collected) -> list[str]:
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
    for method in methods_in(collected.values()):
        chosen = [runs for runs in collected.values() if method in runs]
        rows = [compare(method, runs, suite.baseline) for runs in chosen]
        compared = method != rows[0].counterpart
        better, worse = statistics.count_significant([row.simple_versus[0] for row in rows])
        cells = [method, str(len(rows)), str(better), str(worse)]
        for reference in (rows[0].counterpart, PENDING):
            for score in (mean_simple_regret, cumulative_regret_all):
                cells.append(pooled_difference(chosen, method, reference, score))
        body.append(cells if compared else [*cells[:2], "–", "–", *cells[4:]])
    note = (
        "Significant is Wilcoxon's test, at 5 % after Holm's correction for the number of "
        "problems, on final simple regret against the method that ignores delays. The other "
        "columns pool problems: regret in percent of the reference's mean on each problem, "
        "averaged over problems for each seed, then compared over seeds; here simple regret is "
        "averaged over rounds."
    )
    return [*table(header, body), "", note]


def published_table(collected: Collected) -> list[str]:
    """The best accuracies of the tuning of an SVM, beside the published ones."""
    header = ["problem", "method", "seeds", "accuracy", "95 % interval", "published", "difference"]
    body = []
    for problem in PUBLISHED_SVM.keys() & collected.keys():
        for method, results in collected[problem].items():
            values = [trace(result, "best_arrived")[-1] for result in results]
            published = PUBLISHED_SVM[problem].get(method, Estimate(math.nan, math.nan))
            body.append(
                [
                    problem,
                    method,
                    str(len(values)),
                    estimate(Estimate.of(values)),
                    interval(values, ".3f"),
                    estimate(published),
                    number(float(np.mean(values)) - published.mean, 2),
                ]
            )
    note = (
        "The largest validation accuracy that had arrived by the last round: mean ± standard error "
        "over seeds, with Student's interval for the mean; higher is better. The published means, "
        "and the standard errors of their ten runs, are from the same split of the data."
    )
    return [*table(header, sorted(body, key=lambda cells: cells[0], reverse=True)), "", note]


def delay_figure(collected: Collected) -> Figure:
    """One panel per problem: mean regret by round and method, with bands of one standard error.

    It is the simple regret of what has arrived.
    """
    figure, panels = panel_grid(len(collected))
    colors = method_colors(methods_in(collected.values()))
    for panel, (problem, by_method) in zip(panels, collected.items(), strict=True):
        for method, results in by_method.items():
            curves = np.array([trace(result, "simple_regret") for result in results])
            draw_mean(panel, method, curves, style_of(method), alpha=0.15, color=colors[method])
        panel.set(title=problem, xlabel="round", ylabel="simple regret, arrived")
    share_legend(figure, panels)
    return figure


def style_of(method: str) -> str:
    """The line of a method, by its kind."""
    return {"ts": "--", "qlogei": ":", "qucb": "-."}.get(method.partition("_")[0], "-")
