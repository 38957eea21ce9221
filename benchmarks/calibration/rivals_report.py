"""The report of suite `rivals`: regret, time and stated intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework import metrics
from benchmarks.framework.comparisons import family
from benchmarks.framework.markdown import over_seeds, page, table
from benchmarks.framework.metrics import trace
from benchmarks.framework.plots import regret_figure
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.results import ByMethod, Collected, Result, Score, methods_in, seed_means
from benchmarks.framework.suite import Suite

EVALUATED = "evaluated"


def mean_regret(result: Result) -> float:
    """The mean over the evaluations of the regret at the best point evaluated so far."""
    return float(np.mean(metrics.regret_trace(result, EVALUATED)[1:]))


def final_regret(result: Result) -> float:
    """The regret at the best outcome of all."""
    return metrics.regret_trace(result, "outcome")[-1]


def final_regret_evaluated(result: Result) -> float:
    """The regret at the best point evaluated, which nobody knows."""
    return metrics.regret_trace(result, EVALUATED)[-1]


@dataclass(frozen=True)
class MeanOf:
    """The mean of a record, NaN where it is not recorded."""

    name: str

    def __call__(self, result: Result) -> float:
        if self.name not in result.extras:
            return np.nan
        return float(np.nanmean(trace(result, self.name)))


@dataclass(frozen=True)
class RivalsReport:
    """Declared comparisons over all tasks, and tables by task.

    Args:
        pairs: Methods, the first of which is compared with the second.
    """

    pairs: Sequence[tuple[str, str]]

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        methods = [method.name for method in suite.methods]
        every = list(collected.values())
        intervals: dict[str, tuple[Score, str]] = {
            "coverage of 80 % intervals": (MeanOf("covered"), ".3f"),
            "calibration error": (metrics.calibration_error, ".3f"),
            "width": (MeanOf("width"), ".2f"),
        }
        stating = [m for m in methods_in(every) if seed_means(every, m, MeanOf("covered"))]
        return page(
            "rivals",
            margin=margin_of(suite),
            comparisons=self._comparisons(suite, every),
            mean_regret=_by_task(collected, methods, mean_regret),
            final_regret=_by_task(collected, methods, final_regret),
            final_regret_evaluated=_by_task(collected, methods, final_regret_evaluated),
            times=_scores(every, methods, {"seconds a trial": (MeanOf("cpu_seconds"), ".3f")}),
            intervals=_scores(every, [m for m in methods if m in stating], intervals),
        )

    def figure(self, collected: Collected) -> Figure:
        return regret_figure(collected, EVALUATED)

    def _comparisons(self, suite: Suite[Any, Any], every: Sequence[ByMethod]) -> list[str]:
        margin = margin_of(suite)
        others = [m.name for m in suite.methods if m.name != suite.baseline]
        families = {
            "primary": self.pairs,
            "secondary": [(method, suite.baseline) for method in others],
        }
        regrets = {m.name: seed_means(every, m.name, mean_regret) for m in suite.methods}
        body = []
        for name, pairs in families.items():
            found = family({pair: (regrets[pair[0]], regrets[pair[1]]) for pair in pairs})
            for pair, difference in found.items():
                count = str(len(difference.values))
                body.append([name, *pair, count, *difference.cells(".3f", margin)])
        header = ["family", "method", "less that of", "seeds", "mean regret", "95 % interval"]
        return table([*header, "p", "detectable", ""], body)


def _by_task(collected: Collected, methods: Sequence[str], score: Score) -> list[str]:
    body = [
        [method, *(over_seeds([runs], method, score, ".3f") for runs in collected.values())]
        for method in methods
    ]
    return table(["method", *collected], body)


def _scores(
    every: Sequence[ByMethod], methods: Sequence[str], scores: Mapping[str, tuple[Score, str]]
) -> list[str]:
    body = [[m, *(over_seeds(every, m, *score) for score in scores.values())] for m in methods]
    return table(["method", *scores], body)
