"""The report of suite `delay_workers`: regret relative to random search, by number of workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.delay.report import delay_figure, simple_regret
from benchmarks.framework.comparisons import differences, family
from benchmarks.framework.markdown import estimate, interval, page, table
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import ByMethod, Collected, by_seed
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite

RANDOM = "random"


@dataclass(frozen=True)
class WorkersReport:
    """Regret relative to random search, and comparisons of the default with other methods.

    Args:
        rivals: The methods with which the baseline is compared.
    """

    rivals: tuple[str, ...]

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        methods = [method.name for method in suite.methods]
        groups = {"all": dict(collected), **_by_workers(collected)}
        by_workers = [
            [name, *(estimate(_estimate(shares(runs, method))) for method in methods)]
            for name, runs in groups.items()
        ]
        problems = [
            [problem, *(estimate(_estimate(_regrets(runs, method))) for method in methods)]
            for problem, runs in collected.items()
        ]
        return page(
            "delay_workers",
            baseline=suite.baseline,
            margin=margin_of(suite),
            by_workers=table(["workers", *methods], by_workers),
            comparisons=self._comparisons(suite, collected),
            differences=_differences(suite, groups),
            problems=table(["problem", *methods], problems),
        )

    def figure(self, collected: Collected) -> Figure:
        return delay_figure(collected)

    def _comparisons(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """The baseline minus each rival over all problems, paired by seed."""
        baseline, margin = suite.baseline, margin_of(suite)
        own = shares(collected, baseline)
        found = family({rival: (own, shares(collected, rival)) for rival in self.rivals})
        rows = [[rival, *difference.cells(".1f", margin)] for rival, difference in found.items()]
        header = ["rival", "difference", "95 % interval", "p", "detectable", "verdict"]
        return table(header, rows)


def _differences(suite: Suite[Any, Any], groups: Mapping[str, Collected]) -> list[str]:
    """The baseline minus every other method, with intervals and without tests."""
    baseline = suite.baseline
    rows = []
    for name, runs in groups.items():
        own = shares(runs, baseline)
        for method in suite.methods:
            other = shares(runs, method.name)
            values = differences(own, other)
            if method.name == baseline or not values:
                continue
            cells = [f"{np.mean(values):+.1f}", interval(values, "+.1f")]
            rows.append([name, method.name, str(len(values)), *cells])
    return table(["workers", "method", "seeds", "difference", "95 % interval"], rows)


def shares(collected: Collected, method: str) -> dict[int, float]:
    """Regret by seed in percent of random search's mean, averaged over problems.

    Only seeds with results on all problems are included. The result is empty if random search
    has no results on a problem.
    """
    scaled = []
    for runs in collected.values():
        own, random = _regrets(runs, method), _regrets(runs, RANDOM)
        if not (own and random):
            return {}
        unit = float(np.mean(list(random.values())))
        scaled.append({seed: 100.0 * value / unit for seed, value in own.items()})
    if not scaled:
        return {}
    complete = set.intersection(*(set(each) for each in scaled))
    return {seed: float(np.mean([each[seed] for each in scaled])) for seed in sorted(complete)}


def _regrets(runs: ByMethod, method: str) -> dict[int, float]:
    return by_seed(runs.get(method, []), simple_regret)


def _estimate(values: Mapping[int, float]) -> Estimate:
    return Estimate.of(list(values.values()))


def _by_workers(collected: Collected) -> dict[str, dict[str, ByMethod]]:
    """Problems by the number of workers, which ends their names."""
    groups: dict[str, dict[str, ByMethod]] = {}
    for problem, runs in collected.items():
        groups.setdefault(problem.rpartition("_")[2], {})[problem] = runs
    return groups
