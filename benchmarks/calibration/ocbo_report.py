"""The report of suites `ocbo_designs` and `ocbo_tasks`: areas under regret curves, compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from benchmarks.calibration.calibration_report import INFERENCE, CalibrationReport
from benchmarks.calibration.log_regret import FLOOR, LogRegret
from benchmarks.framework import metrics, statistics
from benchmarks.framework.comparisons import grouped_families
from benchmarks.framework.markdown import estimate, page, table
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.results import Collected, Result, by_seed, methods_in
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite


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
        return metrics.area_under_regret(result, INFERENCE, self.scales[result.problem])


@dataclass(frozen=True)
class OcboReport:
    """Declared comparisons over groups of problems, and then the tables of `CalibrationReport`.

    Args:
        subject: The method whose comparisons with the baseline are primary.
        groups: The problems of each group, over which a seed's values are averaged.
    """

    subject: str
    groups: Mapping[str, tuple[str, ...]]

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        area = Area.of(collected, suite.baseline)
        return page(
            "ocbo",
            margin=margin_of(suite),
            floor=FLOOR,
            baseline=suite.baseline,
            comparisons=self._comparisons(suite, collected, area),
            areas=_areas(collected, suite.baseline, area),
            further=CalibrationReport().lines(suite, collected)[:-1],
        )

    def figure(self, collected: Collected) -> Figure:
        return CalibrationReport().figure(collected)

    def _comparisons(self, suite: Suite[Any, Any], collected: Collected, area: Area) -> list[str]:
        """For each group and method the differences of area, log regret and calibration error."""
        baseline, margin = suite.baseline, margin_of(suite)
        others = [m.name for m in suite.methods if m.name not in (self.subject, baseline)]
        cases = {
            # Without the baseline there is nothing to compare with.
            name: [collected[problem] for problem in problems if problem in area.scales]
            for name, problems in self.groups.items()
        }
        scores = (area, LogRegret(INFERENCE), metrics.calibration_error)
        body = []
        for family, methods in {"primary": [self.subject], "secondary": others}.items():
            for keys, found in grouped_families(cases, methods, baseline, scores).items():
                first, regret, error = found
                cells = [str(len(first.values)), *first.cells(".3f", margin)]
                cells += [*regret.mean_cells(".2f"), *error.mean_cells(".2f")]
                body.append([family, *keys, *cells])
        header = ["family", "problems", "method", "seeds", f"area, less that of {baseline}"]
        header += ["95 % interval", "p", "detectable", ""]
        header += ["log10 of the final regret", "95 % interval"]
        return table([*header, "calibration error", "95 % interval"], body)


def _areas(collected: Collected, baseline: str, area: Area) -> list[str]:
    others = [method for method in methods_in(collected.values()) if method != baseline]
    body = []
    for problem in area.scales:
        reference = by_seed(collected[problem][baseline], area)
        tests = [
            statistics.paired_test(by_seed(collected[problem].get(method, []), area), reference)
            for method in others
        ]
        cells = [estimate(Estimate.of(list(reference.values())))]
        body.append([problem, *cells, *(estimate(test.difference) for test in tests)])
    return table(["problem", baseline, *others], body)
