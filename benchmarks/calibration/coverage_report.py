"""The report of suites `misspecified` and `wellspecified`: coverage and regret."""

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
from benchmarks.framework.comparisons import differences_by_problem, grouped_families
from benchmarks.framework.markdown import mean_with_interval, number, over_seeds, page, table
from benchmarks.framework.plots import draw_intervals, method_colors, panel_grid, share_legend
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import (
    Collected,
    Result,
    Score,
    by_seed,
    cases_of,
    methods_in,
)
from benchmarks.framework.suite import Suite

RECOMMENDED, EVALUATED = LogRegret("mean"), LogRegret("evaluated")

# Largest distance between miscoverage and its stated value that counts as kept on a problem.
TOLERANCE = 0.07


def gap(result: Result) -> float:
    """The distance of a run's miscoverage to the stated value."""
    return abs(metrics.miscoverage(result) - ALPHA)


# The scores that are compared in each group, by heading, with the functions for their cells.
ENDPOINTS: dict[str, tuple[Score, str]] = {
    "gap": (gap, ".3f"),
    "log10 of regret, recommended": (RECOMMENDED, ".2f"),
    "log10 of regret, best evaluated": (EVALUATED, ".2f"),
}

# The scores of each method over all problems.
FURTHER: dict[str, Score] = {
    "calibration error": metrics.calibration_error,
    "coverage of f, visited": partial(metrics.objective_coverage, place="visited"),
    "coverage of f, box": partial(metrics.objective_coverage, place="box"),
    "s": metrics.seconds_per_evaluation,
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
        methods = [method.name for method in suite.methods]
        others = [method for method in methods if method != suite.baseline]
        every = list(collected.values())
        further = [
            [m, *(over_seeds(every, m, score, ".3f") for score in FURTHER.values())]
            for m in methods
        ]
        return page(
            "coverage",
            endpoint=self.endpoint,
            alpha=ALPHA,
            floor=FLOOR,
            margin=margin_of(suite),
            tolerance=TOLERANCE,
            baseline=suite.baseline,
            comparisons=self._comparisons(suite, collected, others),
            miscoverage=_miscoverage(collected, methods),
            recommended=_regret(collected, "recommended", others, suite.baseline, RECOMMENDED),
            evaluated=_regret(collected, "best evaluated", others, suite.baseline, EVALUATED),
            further=table(["method", *FURTHER], further),
        )

    def figure(self, collected: Collected) -> Figure:
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
            # Problems have no order, so no line connects them. Their names are shown without the
            # panel's title.
            names = [problem.removesuffix(f"_{name}") for problem in shown]
            draw_intervals(panel, names, curves, colors, connected=False)
            panel.tick_params(axis="x", rotation=20)
            panel.set(title=name, ylim=(0.0, None), ylabel="miscoverage")
        share_legend(figure, panels)
        return figure

    def _comparisons(
        self, suite: Suite[Any, Any], collected: Collected, others: Sequence[str]
    ) -> list[str]:
        margin = margin_of(suite)
        families = {
            "primary": [self.subject],
            "secondary": [m for m in others if m != self.subject],
        }
        cases = cases_of(self.groups, collected)
        # The primary endpoint first.
        endpoints = {self.endpoint: ENDPOINTS[self.endpoint], **ENDPOINTS}
        scores, forms = zip(*endpoints.values(), strict=True)
        body = []
        for family, methods in families.items():
            pairs = [(method, suite.baseline) for method in methods]
            for (*keys, _), (first, *rest) in grouped_families(cases, pairs, scores).items():
                cells = [str(len(first.values)), *first.cells(forms[0], margin)]
                for found, form in zip(rest, forms[1:], strict=True):
                    cells += found.mean_cells(form)
                body.append([family, *keys, *cells])
        header = ["family", "problems", "method", "seeds"]
        header += [f"{self.endpoint}, difference to {suite.baseline}", "95 % interval", "p"]
        header += ["detectable", ""]
        for beside in list(endpoints)[1:]:
            header += [beside, "95 % interval"]
        return table(header, body)


def _miscoverage(collected: Collected, methods: Sequence[str]) -> list[str]:
    """Means with intervals by problem, and the number of problems with nearly stated coverage."""
    values = {
        m: {
            problem: list(by_seed(runs.get(m, []), metrics.miscoverage).values())
            for problem, runs in collected.items()
        }
        for m in methods
    }
    body = [
        [problem, *(mean_with_interval(values[m][problem], ".3f") for m in methods)]
        for problem in collected
    ]
    kept = [
        sum(abs(np.mean(found) - ALPHA) <= TOLERANCE for found in values[m].values() if found)
        for m in methods
    ]
    body.append([f"within ± {TOLERANCE:g}", *map(str, kept)])
    return table(["problem", *methods], body)


def _regret(
    collected: Collected, heading: str, others: Sequence[str], baseline: str, score: Score
) -> list[str]:
    """The baseline's geometric mean, and the differences of other methods in logarithms."""
    rows = differences_by_problem(collected, others, baseline, score)
    body = [[problem, number(float(10**mean)), *cells] for problem, mean, cells in rows]
    return table([heading, baseline, *others], body)
