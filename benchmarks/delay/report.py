"""The report of suite `delay`: regret of queries whose values have arrived, and of all queries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework import statistics
from benchmarks.framework.comparisons import differences, family, percent_of_logarithms
from benchmarks.framework.markdown import (
    difference,
    estimate,
    estimated,
    interval,
    number,
    page,
    percent,
    sections,
    table,
)
from benchmarks.framework.metrics import trace
from benchmarks.framework.plots import curves_figure
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import (
    ByMethod,
    Collected,
    Result,
    Score,
    by_seed,
    methods_in,
    seed_means,
)
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite

# Each method is compared with the method of its kind that ignores delays, and with this method.
PENDING = "qlogei_pending"


# Mean simple regret below this is irrelevant: it is the effect of one held-out point. The floor
# keeps a lucky start from dominating the mean of logarithms.
FLOOR = 5e-3

# Means at round 100 of the paper's figure 2, with standard errors of the ten runs per method in the
# authors' repository (github.com/daizhongxiang/BO-SDF).
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
    """Comparisons of simple and cumulative regret with methods that ignore delays.

    Args:
        primary: Pairs of methods whose comparisons are primary. Secondary comparisons are all
            others of a method with the method that ignores delays and with `PENDING`.
    """

    primary: tuple[tuple[str, str], ...]

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        return page(
            "delay",
            floor=FLOOR,
            baseline=suite.baseline,
            pending=PENDING,
            comparisons=self._comparisons(suite, collected),
            summary=_summary_table(suite, collected),
            published=published_table(collected),
            problems=sections(collected, partial(_problem_table, baseline=suite.baseline)),
        )

    def figure(self, collected: Collected) -> Figure:
        return delay_figure(collected)

    def _comparisons(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """Comparisons of simple regret, with cumulative regret in further columns."""
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
        header = ["family", "regret of", "compared with", "seeds", "difference", "95 % interval"]
        verdict = f"verdict (margin {100 * math.expm1(margin):.0f} %)"
        header += ["corrected p", verdict, "detectable"]
        return table([*header, "difference of cumulative regret", "95 % interval"], rows)

    def _secondary(self, suite: Suite[Any, Any]) -> list[tuple[str, str]]:
        """All other pairs of a method with the method that ignores delays or with `PENDING`."""
        names = [method.name for method in suite.methods]
        beside = [(name, counterpart(name, suite.baseline, names)) for name in names]
        beside += [(name, PENDING) for name in names]
        pairs: dict[frozenset[str], tuple[str, str]] = {}
        for pair in beside:
            pairs.setdefault(frozenset(pair), pair)
        declared = {frozenset(pair) for pair in self.primary}
        return [pair for both, pair in pairs.items() if len(both) == 2 and both not in declared]


def simple_regret(result: Result) -> float:
    """Final simple regret of the queries whose values arrived in time."""
    return trace(result, "simple_regret")[-1]


def mean_simple_regret(result: Result) -> float:
    """Simple regret averaged over rounds."""
    return float(np.mean(trace(result, "simple_regret")[1:]))


def log_simple_regret(result: Result) -> float:
    """Natural logarithm of `mean_simple_regret`, which is at least `FLOOR`."""
    return math.log(max(mean_simple_regret(result), FLOOR))


def log_cumulative_regret(result: Result) -> float:
    """Natural logarithm of `cumulative_regret_all`."""
    return math.log(cumulative_regret_all(result))


def cumulative_regret(result: Result) -> float:
    """Final cumulative regret of the queries whose values arrived in time."""
    return trace(result, "cumulative_regret")[-1]


def cumulative_regret_all(result: Result) -> float:
    """Final cumulative regret of all queries."""
    return trace(result, "cumulative_regret_all")[-1]


def counterpart(method: str, baseline: str, known: Sequence[str]) -> str:
    """The method of the same kind that ignores delays: ``ts`` for Thompson sampling."""
    kind = method.partition("_")[0]
    return "ts" if kind == "ts" and "ts" in known else baseline


def _paired(
    by_method: ByMethod, method: str, reference: str, score: Score
) -> statistics.PairedTest:
    own, other = (by_seed(by_method.get(name, []), score) for name in (method, reference))
    return statistics.paired_test(own, other)


def _problem_table(by_method: ByMethod, baseline: str) -> list[str]:
    """Each method compared with the method that ignores delays and with `PENDING`."""
    body = []
    for method, results in by_method.items():
        references = (counterpart(method, baseline, list(by_method)), PENDING)
        simple, arrived, every = (
            estimated(results, score)
            for score in (simple_regret, cumulative_regret, cumulative_regret_all)
        )
        simple_versus, every_versus = (
            [
                difference(_paired(by_method, method, other, score), compared=method != other)
                for other in references
            ]
            for score in (simple_regret, cumulative_regret_all)
        )
        times = (
            number(float(np.mean([getattr(r, name) for r in results])))
            for name in ("fit_seconds", "acquisition_seconds")
        )
        count = str(len(results))
        body.append([method, count, simple, *simple_versus, arrived, every, *every_versus, *times])
    versus = ["to ignoring", f"to {PENDING}"]
    header = ["method", "seeds", "simple regret", *versus, "cumulative, arrived"]
    return table([*header, "cumulative, all", *versus, "fit s", "acquisition s"], body)


def _summary_table(suite: Suite[Any, Any], collected: Collected) -> list[str]:
    body = []
    for method in methods_in(collected.values()):
        chosen = [runs for runs in collected.values() if method in runs]
        ignoring = counterpart(method, suite.baseline, list(chosen[0]))
        tests = [_paired(runs, method, ignoring, simple_regret) for runs in chosen]
        counts = map(str, statistics.count_significant(tests))
        pooled = (
            pooled_difference(chosen, method, reference, score)
            for reference in (ignoring, PENDING)
            for score in (mean_simple_regret, cumulative_regret_all)
        )
        decided = counts if method != ignoring else ["–", "–"]
        body.append([method, str(len(chosen)), *decided, *pooled])
    header = ["method", "problems", "significantly better", "significantly worse"]
    header += [
        f"{regret} regret to {reference}, %"
        for reference in ("ignoring", PENDING)
        for regret in ("simple", "cumulative")
    ]
    return table(header, body)


def pooled_difference(chosen: Sequence[ByMethod], method: str, reference: str, score: Score) -> str:
    """The difference over all problems with the score, in percent, with its p-value."""
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
    test = statistics.pooled_test(*map(list, zip(*pairs, strict=True)))
    return f"{estimate(percent(test))} ({number(test.wilcoxon_p_value, 2)})"


def published_table(collected: Collected) -> list[str]:
    """The best accuracies of the tuned SVM, compared with the published accuracies."""
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
    return table(header, sorted(body, key=lambda cells: cells[0], reverse=True))


def delay_figure(collected: Collected) -> Figure:
    """The simple regret of queries whose values have arrived, by round."""
    return curves_figure(
        collected,
        lambda result: trace(result, "simple_regret"),
        "round",
        "simple regret, arrived",
        style_of,
        alpha=0.15,
    )


def style_of(method: str) -> str:
    """The line style of a method, which depends on its kind."""
    return {"ts": "--", "qlogei": ":", "qucb": "-."}.get(method.partition("_")[0], "-")
