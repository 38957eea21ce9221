"""The report of suite `radio`: true capacities, and the localized method beside its rivals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.framework import metrics
from benchmarks.framework.comparisons import family, verdict
from benchmarks.framework.markdown import estimate, interval, number, table
from benchmarks.framework.metrics import Estimate, Score, by_seed
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.result import Result
from benchmarks.framework.suite import Suite

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ByMethod = Mapping[str, Sequence[Result]]

LEGEND = (
    "True capacity in bit/s/Hz after the last round, mean ± standard error over seeds, higher is "
    "better: at the point that would be recommended, which has the largest posterior mean of those "
    "evaluated (or the largest outcome, without a model); at the point with the largest outcome, "
    "as in the paper; and at the best point evaluated, which nobody knows. Coverage is of the next "
    "outcome, and s the time of fits and choices in seconds a run."
)


def capacities(result: Result, point: str) -> list[float]:
    """True capacities round by round, the first after the initial points.

    Args:
        result: A result.
        point: ``"recommended"``, ``"outcome"`` or ``"evaluated"``.
    """
    if point == "recommended":
        point = "outcome" if result.regret_by_mean is None else "mean"
    # The optimal value is 0.
    return [-regret for regret in metrics.regret_trace(result, point)]


def recommended(result: Result) -> float:
    """At the recommended point, at the end."""
    return capacities(result, "recommended")[-1]


def at_largest_outcome(result: Result) -> float:
    """At the point with the largest outcome, at the end."""
    return capacities(result, "outcome")[-1]


def best_evaluated(result: Result) -> float:
    """At the best point evaluated."""
    return capacities(result, "evaluated")[-1]


def log_recommended(result: Result) -> float:
    """The primary endpoint: differences are percents of the capacity, nearly."""
    return 100.0 * math.log(recommended(result))


def coverage(result: Result) -> float:
    """The share of outcomes inside their intervals; NaN without a model."""
    covered = result.extras.get("covered")
    return math.nan if covered is None else float(np.mean(metrics.trace(result, "covered")))


@dataclass(frozen=True)
class RadioReport:
    """Capacities by problem, and comparisons with one method.

    Args:
        subject: The method that the primary comparisons are about.
        rivals: The methods that it is compared with.
    """

    subject: str
    rivals: tuple[str, ...]

    def lines(self, suite: Suite[Any, Any], collected: Mapping[str, ByMethod]) -> list[str]:
        """The comparisons, and a table for each problem."""
        margin = margin_of(suite)
        others = [m.name for m in suite.methods if m.name != suite.baseline]
        primary = [(self.subject, rival) for rival in self.rivals]
        secondary = [(name, suite.baseline) for name in others]
        secondary = [pair for pair in secondary if pair not in primary]
        lines = ["## Comparisons", "", _legend(margin), ""]
        lines += [*_comparisons(suite, collected, primary), "", "Secondary:", ""]
        lines += [*_comparisons(suite, collected, secondary), ""]
        for problem, by_method in collected.items():
            lines += [f"## {problem}", "", LEGEND, "", *_problem_table(by_method), ""]
        return lines

    def figure(self, collected: Mapping[str, ByMethod]) -> Figure:
        """Capacities at the recommended point, round by round."""
        from benchmarks.framework.plots import draw_mean, method_colors, panel_grid, share_legend

        figure, panels = panel_grid(len(collected), len(collected), (6.0, 4.2))
        colors = method_colors(collected)
        for panel, (problem, by_method) in zip(panels, collected.items(), strict=True):
            for method, results in by_method.items():
                curves = np.array([capacities(result, "recommended") for result in results])
                draw_mean(panel, method, curves, color=colors[method])
            panel.set(title=problem, xlabel="rounds", ylabel="capacity, bit/s/Hz")
        share_legend(figure, panels)
        return figure


def _legend(margin: float) -> str:
    return (
        "Capacity at the recommended point, method minus rival, in percent (differences of "
        "logarithms times 100), paired by seed: mean with Student's 95 % interval, and Wilcoxon's "
        "two-sided p after Holm's correction for all rows of a table. `equivalent`: the interval "
        f"lies within ± {margin:g}; `better` or `worse`: p is below {metrics.SIGNIFICANCE:g}. "
        "Detectable is the difference found with a power of 80 % at the strictest step."
    )


def _comparisons(
    suite: Suite[Any, Any],
    collected: Mapping[str, ByMethod],
    pairs: Sequence[tuple[str, str]],
) -> list[str]:
    """The methods of each pair on each problem."""

    def values(problem: str, method: str) -> dict[int, float]:
        return by_seed(collected.get(problem, {}).get(method, []), log_recommended)

    margin = margin_of(suite)
    scores = {
        (problem.name, *pair): (values(problem.name, pair[0]), values(problem.name, pair[1]))
        for problem in suite.problems
        for pair in pairs
    }
    body = []
    for names, found in family(scores).items():
        low, high = metrics.student_interval(found.values)
        body.append(
            [
                *names,
                str(len(found.values)),
                f"{np.mean(found.values):+.1f}",
                interval(found.values, "+.1f"),
                number(found.p, 2),
                f"{found.detectable:.1f}",
                # There, less is better.
                verdict((-high, -low), found.p, margin),
            ]
        )
    header = ["problem", "method", "rival", "seeds", "difference, %", "95 % interval", "p"]
    return table([*header, "detectable, %", ""], body)


def _problem_table(by_method: ByMethod) -> list[str]:
    header = ["method", "seeds", "recommended", "largest outcome", "best", "coverage", "s"]
    body = []
    for method, results in by_method.items():
        scores: tuple[Score, ...] = (recommended, at_largest_outcome, best_evaluated, coverage)
        values = [Estimate.of(list(by_seed(results, score).values())) for score in scores]
        seconds = np.mean([sum(r.fit_seconds) + sum(r.acquisition_seconds) for r in results])
        body.append([method, str(len(results)), *map(estimate, values), f"{seconds:.1f}"])
    return table(header, body)
