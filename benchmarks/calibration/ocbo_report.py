"""The report of suites `ocbo_designs` and `ocbo_tasks`: areas under regret curves, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from benchmarks.calibration.calibration_report import CalibrationReport
from benchmarks.calibration.log_regret import FLOOR, LogRegret
from benchmarks.framework import metrics, statistics
from benchmarks.framework.comparisons import Difference, grouped_families
from benchmarks.framework.markdown import estimate, table
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.results import Collected, Result, by_seed, methods_in
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite

INFERENCE = "outcome"


@dataclass(frozen=True)
class Area:
    """The area under a run's curve of regret, in units of its problem's initial regret.

    Args:
        scales: The unit by problem, see `metrics.initial_scale`.
    """

    scales: Mapping[str, float]

    @classmethod
    def of(cls, collected: Collected, baseline: str) -> Area:
        """In the units of the baseline's runs; problems that it lacks have none."""
        return cls(
            {
                problem: metrics.initial_scale(by_method[baseline], INFERENCE)
                for problem, by_method in collected.items()
                if baseline in by_method
            }
        )

    def __call__(self, result: Result) -> float:
        """See `Score`."""
        return metrics.area_under_regret(result, INFERENCE, self.scales[result.problem])


@dataclass(frozen=True)
class OcboReport:
    """Declared comparisons over groups of problems, and then the tables of `CalibrationReport`.

    Args:
        subject: The method whose comparisons with the baseline are primary.
        groups: The problems of each group, over which a seed's values are averaged.
        tables: What follows.
    """

    subject: str
    groups: Mapping[str, tuple[str, ...]]
    tables: CalibrationReport = CalibrationReport(inference=INFERENCE)

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """The comparisons, areas by problem, and what else there is of each problem."""
        margin = margin_of(suite)
        area = Area.of(collected, suite.baseline)
        others = [m.name for m in suite.methods if m.name not in (self.subject, suite.baseline)]
        rows = {
            "primary": self._compare(collected, [self.subject], suite.baseline, area),
            "secondary": self._compare(collected, others, suite.baseline, area),
        }
        body = [
            [family, *keys, *_cells(found, margin)]
            for family, compared in rows.items()
            for keys, found in compared.items()
        ]
        header = ["family", "problems", "method", "seeds", f"area, less that of {suite.baseline}"]
        header += ["95 % interval", "p", "detectable", ""]
        header += ["log10 of the final regret", "95 % interval"]
        header += ["calibration error", "95 % interval"]
        lines = ["## Comparisons", "", _legend(margin), "", *table(header, body), ""]
        lines += ["## Areas by problem", "", _BY_PROBLEM.format(suite.baseline), ""]
        lines += [*_areas(collected, suite.baseline, area), ""]
        return lines + self.tables.lines(suite, collected)

    def figure(self, collected: Collected) -> Figure:
        """Regret curves."""
        return self.tables.figure(collected)

    def _compare(
        self,
        collected: Collected,
        methods: Sequence[str],
        baseline: str,
        area: Area,
    ) -> dict[tuple[str, str], tuple[Difference, ...]]:
        """For each group and method the differences of area, log regret and calibration error."""
        cases = {
            # Without the baseline there is nothing to compare with.
            name: [
                collected[problem] if problem in area.scales else {}
                for problem in problems
                if problem in collected
            ]
            for name, problems in self.groups.items()
        }
        scores = (area, LogRegret(INFERENCE), metrics.calibration_error)
        return grouped_families(cases, methods, baseline, scores)


def _legend(margin: float) -> str:
    return (
        "The primary endpoint is the area under the curve of simple regret at the point with the "
        "largest outcome: its mean over the evaluations, in units of the mean regret of the "
        "initial designs on the problem. It is averaged over the problems of a group for each "
        "seed; differences to the baseline are paired by seed, and less is better. p is "
        "Wilcoxon's, two-sided, after Holm's correction within the family; detectable is the "
        "difference found with a power of 80 % at its strictest step. `equivalent`: the interval "
        f"lies within ± {margin:g}. The last columns show, without tests, the differences of the "
        f"decimal logarithm of the final regret, {FLOOR:g} at the least, and of the calibration "
        "error."
    )


_BY_PROBLEM = (
    "Area of `{}`, and the differences of the others to it, mean ± standard error over seeds; "
    "without tests."
)


def _cells(found: tuple[Difference, ...], margin: float) -> list[str]:
    area, regret, error = found
    return [
        str(len(area.values)),
        *area.cells(".3f", margin),
        *regret.mean_cells(".2f"),
        *error.mean_cells(".2f"),
    ]


def _areas(collected: Collected, baseline: str, area: Area) -> list[str]:
    methods = methods_in(collected.values())
    others = [method for method in methods if method != baseline]
    body = []
    for problem, by_method in collected.items():
        if problem not in area.scales:
            continue
        reference = by_seed(by_method[baseline], area)
        tests = [
            statistics.paired_test(by_seed(by_method.get(method, []), area), reference)
            for method in others
        ]
        cells = [estimate(Estimate.of(list(reference.values())))]
        body.append([problem, *cells, *(estimate(test.difference) for test in tests)])
    return table(["problem", baseline, *others], body)
