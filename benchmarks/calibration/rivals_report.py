"""The report of suite `rivals`: regret, time and stated intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework import metrics
from benchmarks.framework.comparisons import family
from benchmarks.framework.markdown import mean_with_interval, table
from benchmarks.framework.metrics import trace
from benchmarks.framework.plots import regret_figure
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


def coverage(result: Result) -> float:
    """The share of outcomes in their stated intervals; NaN where none are stated."""
    return _mean(result, "covered")


def width(result: Result) -> float:
    """The mean width of the stated intervals; NaN where none are stated."""
    return _mean(result, "width")


def cpu_seconds(result: Result) -> float:
    """The mean processor time of a trial; NaN where it is not recorded."""
    return _mean(result, "cpu_seconds")


def _mean(result: Result, name: str) -> float:
    return float(np.nanmean(trace(result, name))) if name in result.extras else np.nan


@dataclass(frozen=True)
class RivalsReport:
    """Declared comparisons over all tasks, and tables by task.

    Args:
        pairs: Methods, the first of which is compared with the second.
    """

    pairs: Sequence[tuple[str, str]]

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """The comparisons, then regret by task, times and stated intervals."""
        methods = [method.name for method in suite.methods]
        every = [collected[p.name] for p in suite.problems if p.name in collected]
        return [
            *self._comparisons(suite, every),
            *_by_task(collected, methods),
            *_times(every, methods),
            *_intervals(every, methods),
        ]

    def figure(self, collected: Collected) -> Figure:
        """Regret curves."""
        return regret_figure(collected, EVALUATED)

    def _comparisons(self, suite: Suite[Any, Any], every: Sequence[ByMethod]) -> list[str]:
        margin = margin_of(suite)
        others = [m.name for m in suite.methods if m.name != suite.baseline]
        families = {
            "primary": self.pairs,
            "secondary": [(method, suite.baseline) for method in others],
        }
        body = []
        for name, pairs in families.items():
            values = {
                (first, second): (
                    seed_means(every, first, mean_regret),
                    seed_means(every, second, mean_regret),
                )
                for first, second in pairs
            }
            for (first, second), found in family(values).items():
                count, cells = str(len(found.values)), found.cells(".3f", margin)
                body.append([name, first, second, count, *cells])
        legend = (
            "Regret is that of the objective, the mean of a task's repetitions, at the best trial "
            "so far, in standard deviations of the objective over the grid. The "
            "mean regret of a run is its mean over the trials after the initial ones. It is "
            "averaged over the tasks for each seed; differences are paired by seed, and less is "
            "better. p is Wilcoxon's, two-sided, after Holm's correction within the family; "
            "detectable is the difference found with a power of 80 % at its strictest step. "
            f"`equivalent`: the interval lies within ± {margin:g}."
        )
        header = ["family", "method", "less that of", "seeds", "mean regret", "95 % interval"]
        header += ["p", "detectable", ""]
        return ["## Comparisons", "", legend, "", *table(header, body), ""]


def _by_task(collected: Collected, methods: Sequence[str]) -> list[str]:
    scores: Mapping[str, Score] = {
        "Mean regret": mean_regret,
        "Final regret at the best outcome": final_regret,
        "Final regret at the best point evaluated": final_regret_evaluated,
    }
    lines = []
    for heading, score in scores.items():
        body = [
            [
                method,
                *(
                    mean_with_interval(
                        list(by_seed(by_method.get(method, []), score).values()), ".3f"
                    )
                    for by_method in collected.values()
                ),
            ]
            for method in methods
        ]
        lines += [f"## {heading}", "", "By task, with 95 % intervals over seeds.", ""]
        lines += [*table(["method", *collected], body), ""]
    return lines


def _times(every: Sequence[ByMethod], methods: Sequence[str]) -> list[str]:
    body = [[method, *_cells(every, method, {cpu_seconds: ".3f"})] for method in methods]
    legend = (
        "Processor seconds to tell an outcome and to ask for the next trial, fits included, on one "
        "thread: means over the trials after the initial ones, with 95 % intervals over seeds."
    )
    return ["## Time", "", legend, "", *table(["method", "seconds a trial"], body), ""]


def _intervals(every: Sequence[ByMethod], methods: Sequence[str]) -> list[str]:
    scores: dict[Score, str] = {coverage: ".3f", metrics.calibration_error: ".3f", width: ".2f"}
    stating = [m for m in methods_in(every) if seed_means(every, m, coverage)]
    body = [[m, *_cells(every, m, scores)] for m in methods if m in stating]
    legend = (
        "Clients state the mean and the variance of the next outcome. The table shows the share of "
        "outcomes in the 80 % intervals of that normal distribution, the calibration error of its "
        "PITs (a sum of squares over 19 levels; 0.17 on average for 20 outcomes if the "
        "distribution is true), and the mean width. Samplers of Optuna state nothing."
    )
    header = ["method", "coverage of 80 % intervals", "calibration error", "width"]
    return ["## Stated intervals", "", legend, "", *table(header, body), ""]


def _cells(every: Sequence[ByMethod], method: str, scores: Mapping[Score, str]) -> list[str]:
    return [
        mean_with_interval(list(seed_means(every, method, score).values()), form)
        for score, form in scores.items()
    ]
