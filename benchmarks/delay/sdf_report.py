"""The report of suites `sdf_published` and `sdf_sweeps`: declared comparisons, then means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.delay.report import (
    PUBLISHED_SVM,
    cumulative_regret,
    cumulative_regret_all,
    delay_figure,
    mean_simple_regret,
    published_table,
    simple_regret,
)
from benchmarks.framework.collected import Collected, Pair, Run, methods_in, scores_of
from benchmarks.framework.comparisons import family_of_runs
from benchmarks.framework.markdown import estimate, number, table
from benchmarks.framework.metrics import Score, seconds, trace
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.result import Result
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_points(result: Result) -> list[float]:
    """By query, the initial ones apart: 1 where the point had not been queried before, else 0.

    A point in another context is another one.
    """
    seen: set[tuple[float, ...]] = set()
    flags = []
    for x in map(tuple, result.X):
        flags.append(float(x not in seen))
        seen.add(x)
    return flags[result.num_initial :]


def share_of_new_points(result: Result) -> float:
    """How many of the queries were of points that had not been queried before, in percent."""
    archived = NEW_POINTS in result.extras
    flags = trace(result, NEW_POINTS) if archived else new_points(result)
    return 100.0 * sum(flags) / len(flags)


# The name under which an archive keeps them.
NEW_POINTS = "new_points"

HALLUCINATING = "ucb_hallucinate"

CRITERIA: dict[str, Score] = {
    "simple regret": simple_regret,
    "averaged over rounds": mean_simple_regret,
    "cumulative, arrived": cumulative_regret,
    "cumulative, all": cumulative_regret_all,
    "new points, %": share_of_new_points,
}


@dataclass(frozen=True)
class SdfReport:
    """Comparisons of the logarithm of one regret, and the means of all.

    Args:
        endpoint: The regret.
        primary: The primary comparisons, the first of a pair beside the second.
        axes: If there are any, the figure has the endpoint by one parameter a panel, and these are
            the problems at its values; by default it has curves of regret.
    """

    endpoint: Score
    primary: tuple[Pair, ...]
    axes: Mapping[str, Mapping[str, str]] | None = None

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """The comparisons, the published means where there are any, and a table of problems."""
        margin = margin_of(suite)
        secondary = tuple(pair for pair in with_hallucination(suite) if pair not in self.primary)
        rows = [
            [name, *map(str, pair), *found.percent_cells(margin)]
            for name, pairs in (("primary", self.primary), ("secondary", secondary))
            for pair, found in family_of_runs(pairs, collected, self._logarithm).items()
        ]
        header = ["family", "regret of", "compared with", "seeds", "difference", "95 % interval"]
        verdict = f"verdict (margin {100 * math.expm1(margin):.0f} %)"
        header += ["corrected p", verdict, "detectable"]
        legend = (
            "How much more or less regret the first run has than the second, in percent: the mean "
            "of the differences of the primary endpoint, paired by seed. p is Wilcoxon's, "
            "two-sided, after Holm's correction within the family; detectable is the difference "
            "found with a power of 80 % at its strictest step."
        )
        lines = ["## Comparisons", "", legend, "", *table(header, rows), ""]
        if any(problem in PUBLISHED_SVM for problem in collected):
            lines += ["## Beside the published means", "", *published_table(collected), ""]
        return [*lines, "## All problems", "", *means(collected), ""]

    def figure(self, collected: Collected) -> Figure:
        """Curves of regret, or the endpoint by each parameter."""
        from benchmarks.framework.plots import method_colors, sweep_figure

        if self.axes is None:
            return delay_figure(collected)

        def logarithms(method: str, problem: str) -> list[float]:
            return list(scores_of(Run(problem, method), collected, self._logarithm).values())

        methods = method_colors(methods_in(collected.values()))
        ylabel = "regret (geometric mean)"
        return sweep_figure(self.axes, methods, logarithms, ylabel, logarithms=True)

    def _logarithm(self, result: Result) -> float:
        """The endpoint; NaN, which does not count, for problems that do not have this regret."""
        regret = self.endpoint(result)
        return math.log(regret) if regret > 0.0 else math.nan


def with_hallucination(suite: Suite[Any, Any]) -> list[Pair]:
    """Each way of censoring beside the rule that hallucinates, if there is one, on all problems."""
    names = [method.name for method in suite.methods]
    return [
        (Run(problem.name, name), Run(problem.name, HALLUCINATING))
        for problem in suite.problems
        for name in names
        if name.startswith("ucb_sdf") and HALLUCINATING in names
    ]


def means(collected: Collected) -> list[str]:
    """Means with standard errors, a row for each method on each problem."""
    rows = [
        [
            problem,
            method,
            str(len(results)),
            *(
                estimate(Estimate.of([score(result) for result in results]))
                for score in CRITERIA.values()
            ),
            number(sum(map(seconds, results)) / len(results)),
        ]
        for problem, by_method in collected.items()
        for method, results in by_method.items()
    ]
    return table(["problem", "method", "seeds", *CRITERIA, "seconds"], rows)
