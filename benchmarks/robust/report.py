"""The report of suite `robust`: expected regret over contexts, and time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework.comparisons import differences, percent_of_logarithms
from benchmarks.framework.markdown import estimate, interval, number, page, sections, table
from benchmarks.framework.metrics import seconds, trace
from benchmarks.framework.plots import curves_figure
from benchmarks.framework.replicate_result import ByMethod, Collected, Result, by_seed, methods_in
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite
from benchmarks.robust.primary_comparisons import primary_comparisons

LAST_ROUNDS = 20

# Methods with dashed lines in the figure.
DASHED = ("gp_ucb", "sbo_kde", "drbo_mmd", "drbo_mmd_minimax", "stable_opt")


# The methods of the primary comparisons with the baseline.
PRIMARY = ("wdrbo", "wdrbo_exact", "drbo_kde")


@dataclass(frozen=True)
class RobustReport:
    """Tables of expected regret over contexts, and of time."""

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        return page(
            "robust",
            late=LAST_ROUNDS,
            baseline=suite.baseline,
            primary=primary_comparisons(suite, collected, PRIMARY, log_regret),
            times=time_table(collected, suite.baseline),
            problems=sections(collected, partial(problem_table, baseline=suite.baseline)),
        )

    def figure(self, collected: Collected) -> Figure:
        return curves_figure(
            collected,
            lambda result: trace(result, "cumulative_regret"),
            "round",
            "cumulative expected regret",
            lambda method: "--" if method in DASHED else "-",
            first=1,
            alpha=0.15,
        )


def cumulative_regret(result: Result) -> float:
    """The sum of expected regrets over all rounds (eq. 11)."""
    return trace(result, "cumulative_regret")[-1]


def log_regret(result: Result) -> float:
    """The primary endpoint: the logarithm of the regret summed over all rounds."""
    return math.log(cumulative_regret(result))


def late_regret(result: Result) -> float:
    """The mean expected regret (eq. 10) of the last rounds."""
    return float(np.mean(trace(result, "regret")[-LAST_ROUNDS:]))


def problem_table(by_method: ByMethod, baseline: str) -> list[str]:
    """A table of regret and time on one problem, with a row for each method."""
    reference = by_seed(by_method.get(baseline, []), log_regret)
    rows = []
    for method, results in by_method.items():
        totals = [cumulative_regret(result) for result in results]
        paired = differences(by_seed(results, log_regret), reference)
        rows.append(
            [
                method,
                str(len(results)),
                number(float(np.mean(totals))),
                interval(totals, ".3g"),
                *(percent_of_logarithms(paired) if method != baseline else ("–", "–")),
                estimate(Estimate.of([late_regret(result) for result in results])),
                number(float(np.mean([result.fit_seconds for result in results]))),
                number(float(np.mean([result.acquisition_seconds for result in results]))),
                number(float(np.mean([seconds(result) for result in results]))),
            ]
        )
    header = ["method", "seeds", "cumulative regret", "95 % interval", f"to {baseline}"]
    return table([*header, "95 % interval", "late regret", "fit s", "acquisition s", "run s"], rows)


def time_table(collected: Collected, baseline: str) -> list[str]:
    """A table of run times in seconds, and of their ratio to the baseline, by method.

    The ratio is the geometric mean over problems of ratios of mean times.
    """
    rows = []
    for method in methods_in(collected.values()):
        mean_seconds = {
            problem: float(np.mean([seconds(result) for result in runs[method]]))
            for problem, runs in collected.items()
            if method in runs
        }
        ratios = [
            mean_seconds[problem] / np.mean([seconds(r) for r in runs[baseline]])
            for problem, runs in collected.items()
            if problem in mean_seconds and baseline in runs
        ]
        ratio = f"{float(np.exp(np.mean(np.log(ratios)))):.2f} x" if ratios else "–"
        by_problem = [number(mean_seconds.get(problem, math.nan)) for problem in collected]
        rows.append([method, *by_problem, ratio])
    return table(["method", *collected, f"run / {baseline}"], rows)
