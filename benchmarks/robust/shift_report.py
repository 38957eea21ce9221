"""The report of suite `robust_shift`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework.markdown import estimate, page, table
from benchmarks.framework.metrics import trace
from benchmarks.framework.plots import method_colors, panel_grid, share_legend
from benchmarks.framework.replicate_result import Collected, Result, methods_in
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite
from benchmarks.robust.primary_comparisons import primary_comparisons

# The methods of the primary comparisons with the baseline.
PRIMARY = ("exact_0.1", "exact_measured", "observed")

CRITERIA = ("regret", "worst_regret", "nominal_regret", "surplus", "radius")


def mean_of(name: str) -> Callable[[Result], float]:
    """The mean of a trace over all rounds, as a score."""
    return lambda result: float(np.mean(trace(result, name)))


def log_regret(result: Result) -> float:
    """The primary endpoint: the logarithm of the mean regret under the true distribution."""
    return math.log(mean_of("regret")(result))


@dataclass(frozen=True)
class ShiftReport:
    """Means by method and shift for each function, and the primary comparisons."""

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        return page(
            "robust_shift",
            primary=primary_comparisons(suite, collected, PRIMARY, log_regret),
            **{name: means(collected, name) for name in CRITERIA},
        )

    def figure(self, collected: Collected) -> Figure:
        return shift_figure(collected)


def means(collected: Collected, name: str) -> list[str]:
    """A table of one criterion, with a row for each method and a column for each problem."""
    methods = methods_in(collected.values())
    rows = [
        [method]
        + [
            estimate(Estimate.of([mean_of(name)(result) for result in runs.get(method, [])]))
            for runs in collected.values()
        ]
        for method in methods
    ]
    return table(["method", *collected], rows)


def shift_figure(collected: Collected) -> Figure:
    """Mean regret of each method by the size of the shift."""
    functions = list(dict.fromkeys(problem.rpartition("_")[0] for problem in collected))
    figure, panels = panel_grid(len(functions))
    colors = method_colors(methods_in(collected.values()))
    for panel, function in zip(panels, functions, strict=True):
        curves: dict[str, list[tuple[float, float]]] = {}
        for problem, by_method in collected.items():
            start, _, shift = problem.rpartition("_")
            for method, results in by_method.items() if start == function else ():
                mean = float(np.mean([mean_of("regret")(result) for result in results]))
                curves.setdefault(method, []).append((float(shift), mean))
        for method, points in curves.items():
            style = "--" if method in ("erbo", "observed") else "-"
            panel.plot(*zip(*sorted(points), strict=True), style, label=method, c=colors[method])
        panel.set(title=function, xlabel="shift", ylabel="mean regret")
    share_legend(figure, panels)
    return figure
