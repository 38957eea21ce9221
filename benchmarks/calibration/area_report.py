"""The report of the suites on OCBO as published, which compares areas under regret curves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.calibration.log_regret import FLOOR, LogRegret
from benchmarks.framework import metrics
from benchmarks.framework.comparisons import grouped_families
from benchmarks.framework.markdown import estimated, page, table
from benchmarks.framework.plots import curves_figure
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import Collected, Result, cases_of
from benchmarks.framework.suite import Suite

INFERENCE = "evaluated"


@dataclass(frozen=True)
class Area:
    """The area under a run's curve of regret, in units of its problem's mean initial regret.

    Args:
        units: The unit of each problem.
    """

    units: Mapping[str, float]

    @classmethod
    def of(cls, collected: Collected, baseline: str) -> Area:
        """The score in units of the baseline's runs."""
        return cls(
            {
                problem: float(np.mean([_curve(result)[0] for result in by_method[baseline]]))
                for problem, by_method in collected.items()
            }
        )

    def __call__(self, result: Result) -> float:
        return float(np.mean(_curve(result)[1:])) / self.units[result.problem]


def _curve(result: Result) -> list[float]:
    return metrics.regret_trace(result, INFERENCE)


@dataclass(frozen=True)
class AreaReport:
    """Declared comparisons over groups of problems, and areas by problem.

    Args:
        subject: The method whose comparisons with the baseline are primary.
        groups: The problems of each group, over which a seed's values are averaged.
        published: The published areas of each problem, calibrated and uncalibrated.
    """

    subject: str
    groups: Mapping[str, tuple[str, ...]]
    published: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        others = [m.name for m in suite.methods if m.name not in (self.subject, suite.baseline)]
        area = Area.of(collected, suite.baseline)
        scores = (area, LogRegret(INFERENCE), metrics.calibration_error)
        cases, margin, body = cases_of(self.groups, collected), margin_of(suite), []
        for family, methods in {"primary": [self.subject], "secondary": others}.items():
            pairs = [(method, suite.baseline) for method in methods]
            for (*keys, _), (first, *beside) in grouped_families(cases, pairs, scores).items():
                regret, error = beside
                cells = [str(len(first.values)), *first.cells(".3f", margin)]
                cells += [*regret.mean_cells(".2f"), *error.mean_cells(".2f")]
                body.append([family, *keys, *cells])
        header = ["family", "problems", "method", "seeds", f"area, difference to {suite.baseline}"]
        header += ["95 % interval", "p", "detectable", ""]
        header += ["log10 of the final regret", "95 % interval"]
        header += ["calibration error", "95 % interval"]
        return page(
            "areas",
            margin=margin,
            floor=FLOOR,
            comparisons=table(header, body),
            areas=self._areas(suite, collected, area),
        )

    def figure(self, collected: Collected) -> Figure:
        xlabel = "evaluations after the initial design"
        return curves_figure(collected, _curve, xlabel, "simple regret")

    def _areas(self, suite: Suite[Any, Any], collected: Collected, area: Area) -> list[str]:
        names = [method.name for method in suite.methods]
        body = []
        for problem, by_method in collected.items():
            values = (estimated(by_method.get(name, []), area) for name in names)
            published = [f"{value:.3f}" for value in reversed(self.published.get(problem, ()))]
            body.append([problem, *values, *published])
        header = ["problem", *names]
        if self.published:
            header += ["published, plain", "published, calibrated"]
            body = [[*row, *["–"] * (len(header) - len(row))] for row in body]
        return table(header, body)
