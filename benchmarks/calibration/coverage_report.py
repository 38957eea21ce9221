"""The report of suites `misspecified` and `wellspecified`: coverage, and regret beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.calibration.log_regret import FLOOR, LogRegret
from benchmarks.calibration.methods import ALPHA
from benchmarks.framework import metrics
from benchmarks.framework.comparisons import Difference, differences, grouped_families
from benchmarks.framework.markdown import mean_with_interval, number, table
from benchmarks.framework.plots import draw_intervals, method_colors, panel_grid, share_legend
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

RECOMMENDED, EVALUATED = LogRegret("mean"), LogRegret("evaluated")

# Miscoverage within this of what is stated counts as kept on a problem.
TOLERANCE = 0.07


def gap(result: Result) -> float:
    """The distance of a run's miscoverage to the stated one."""
    return abs(metrics.miscoverage(result) - ALPHA)


# What is compared by group, by its heading, and the form of its cells.
ENDPOINTS: dict[str, tuple[Score, str]] = {
    "gap": (gap, ".3f"),
    "log10 of regret, recommended": (RECOMMENDED, ".2f"),
    "log10 of regret, best evaluated": (EVALUATED, ".2f"),
}


@dataclass(frozen=True)
class CoverageReport:
    """Declared comparisons by group of problems, and tables of all problems.

    Args:
        subject: The method whose comparisons with the baseline are primary.
        groups: The problems of each group, over which a seed's values are averaged.
        endpoint: The primary endpoint, of `ENDPOINTS`.
    """

    subject: str
    groups: Mapping[str, tuple[str, ...]]
    endpoint: str = "gap"

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """The comparisons, then miscoverage, regret and what else there is of each problem."""
        methods = [method.name for method in suite.methods]
        others = [method for method in methods if method != suite.baseline]
        return [
            *self._comparison_section(suite, collected),
            *_miscoverage_section(collected, methods),
            *_regret_section(collected, others, suite.baseline),
            *_further_section(collected, methods),
        ]

    def figure(self, collected: Collected) -> Figure:
        """Miscoverage on each problem, with 95 % intervals: a panel for each group."""
        colors = method_colors(methods_in(collected.values()))
        figure, panels = panel_grid(len(self.groups))
        for panel, (name, problems) in zip(panels, self.groups.items(), strict=True):
            shown = [problem for problem in problems if problem in collected]
            panel.axhspan(ALPHA - TOLERANCE, ALPHA + TOLERANCE, color="0.92")
            panel.axhline(ALPHA, color="0.5", lw=1)
            curves = {
                method: [
                    list(by_seed(collected[p].get(method, []), metrics.miscoverage).values())
                    for p in shown
                ]
                for method in colors
            }
            # Problems are in no order, so that nothing connects them.
            # The panel's title need not be repeated in each name.
            names = [problem.removesuffix(f"_{name}") for problem in shown]
            draw_intervals(panel, names, curves, colors, connected=False)
            panel.tick_params(axis="x", rotation=20)
            panel.set(title=name, ylim=(0.0, None), ylabel="miscoverage")
        share_legend(figure, panels)
        return figure

    def _comparison_section(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        margin = margin_of(suite)
        others = [m.name for m in suite.methods if m.name not in (self.subject, suite.baseline)]
        cases = {
            name: [collected[problem] for problem in problems if problem in collected]
            for name, problems in self.groups.items()
        }
        # The primary endpoint first.
        endpoints = {self.endpoint: ENDPOINTS[self.endpoint], **ENDPOINTS}
        scores, forms = zip(*endpoints.values(), strict=True)
        body = [
            [family, *keys, *_cells(found, forms, margin)]
            for family, methods in {"primary": [self.subject], "secondary": others}.items()
            for keys, found in grouped_families(cases, methods, suite.baseline, scores).items()
        ]
        header = ["family", "problems", "method", "seeds"]
        header += [f"{self.endpoint}, less that of {suite.baseline}", "95 % interval", "p"]
        header += ["detectable", ""]
        for beside in list(endpoints)[1:]:
            header += [beside, "95 % interval"]
        legend = (
            f"The primary endpoint is the {self.endpoint}. The gap of a run is |miscoverage - "
            f"{ALPHA:g}|; miscoverage is the share of outcomes outside their stated "
            f"{100 * (1 - ALPHA):g} % intervals, over the last half of the evaluations, and chance "
            "alone makes the gap of 20 outcomes 0.07 on average. Regret is the final simple "
            f"regret, {FLOOR:g} at the least, at the recommended point (the evaluated one with the "
            "largest posterior mean) and at the best one evaluated. All are averaged over the "
            "problems of a group for each seed; differences to the baseline are paired by seed, "
            "and less is better. p is Wilcoxon's, two-sided, after Holm's correction within the "
            "family; detectable is the difference found with a power of 80 % at its strictest "
            f"step. `equivalent`: the interval lies within ± {margin:g}. Columns beside the "
            "primary endpoint are not tested."
        )
        return ["## Comparisons", "", legend, "", *table(header, body), ""]


def _cells(found: Sequence[Difference], forms: Sequence[str], margin: float) -> list[str]:
    cells = [str(len(found[0].values)), *found[0].cells(forms[0], margin)]
    for difference, form in zip(found[1:], forms[1:], strict=True):
        cells += difference.mean_cells(form)
    return cells


def _miscoverage_section(collected: Collected, methods: Sequence[str]) -> list[str]:
    """Means with intervals by problem, and on how many problems they are near what is stated."""
    values = {
        problem: {m: _values(by_method, m, metrics.miscoverage) for m in methods}
        for problem, by_method in collected.items()
    }
    body = [
        [problem, *(mean_with_interval(found[m], ".3f") for m in methods)]
        for problem, found in values.items()
    ]
    kept = [
        sum(abs(np.mean(found[m]) - ALPHA) <= TOLERANCE for found in values.values() if found[m])
        for m in methods
    ]
    body.append([f"within ± {TOLERANCE:g}", *map(str, kept)])
    legend = (
        "Miscoverage of the outcomes of the last half, with 95 % intervals over seeds; it should "
        f"be {ALPHA:g}. The last row counts problems whose mean is within {TOLERANCE:g} of that."
    )
    return ["## Miscoverage", "", legend, "", *table(["problem", *methods], body), ""]


def _regret_section(collected: Collected, others: Sequence[str], baseline: str) -> list[str]:
    legend = (
        f"Final simple regret of `{baseline}` as a geometric mean, and differences of its decimal "
        "logarithm to it, with 95 % intervals and without tests; less is better."
    )
    lines = ["## Regret", "", legend, ""]
    for heading, score in (("recommended", RECOMMENDED), ("best evaluated", EVALUATED)):
        body = []
        for problem, by_method in collected.items():
            reference = by_seed(by_method.get(baseline, []), score)
            level = 10 ** np.mean(list(reference.values())) if reference else np.nan
            paired = [
                differences(by_seed(by_method.get(method, []), score), reference)
                for method in others
            ]
            cells = (mean_with_interval(found, "+.2f") for found in paired)
            body.append([problem, number(float(level)), *cells])
        lines += [*table([heading, baseline, *others], body), ""]
    return lines


def _further_section(collected: Collected, methods: Sequence[str]) -> list[str]:
    """Over all problems: calibration error, the coverage of the objective, and times."""
    scores: dict[str, tuple[Score, str]] = {
        "calibration error": (metrics.calibration_error, ".3f"),
        "coverage of f, visited": (partial(metrics.objective_coverage, place="visited"), ".3f"),
        "coverage of f, box": (partial(metrics.objective_coverage, place="box"), ".3f"),
        "s": (metrics.seconds_per_evaluation, ".3f"),
    }
    case = list(collected.values())
    body = [
        [
            method,
            *(
                mean_with_interval(list(seed_means(case, method, score).values()), form)
                for score, form in scores.values()
            ),
        ]
        for method in methods
    ]
    legend = (
        "Averaged over all problems for each seed, with 95 % intervals. The calibration error sums "
        "the squared gaps between 19 levels and observed frequencies of PITs; by chance alone it "
        "is about 3.3 over the number of evaluations. Coverage of f is that of the final model's "
        f"{100 * (1 - ALPHA):g} % intervals of the objective, at the points evaluated and in the "
        "box. Times are per evaluation."
    )
    return ["## Further", "", legend, "", *table(["method", *scores], body), ""]


def _values(by_method: ByMethod, method: str, score: Score) -> list[float]:
    return list(by_seed(by_method.get(method, []), score).values())
