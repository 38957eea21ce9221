"""The report of suite `any_model`: effects of calibration on each kind of model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from benchmarks.calibration.any_model import NUM_JUDGED, STATEMENTS
from benchmarks.framework.comparisons import differences, family, percent_of_logarithms
from benchmarks.framework.markdown import mean_with_interval, over_seeds, page, table
from benchmarks.framework.metrics import seconds, trace
from benchmarks.framework.plots import draw_intervals, panel_grid, share_legend
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import (
    ByMethod,
    Collected,
    Result,
    Score,
    cases_of,
    seed_means,
)
from benchmarks.framework.suite import Suite

# Levels of central intervals.
LEVELS = tuple(round(0.5 + 0.05 * j, 2) for j in range(10))
PLAIN, PRIMARY, SECONDARY = "plain", "recalibrated", "localized"


@dataclass(frozen=True)
class Coverage:
    """The share of a run's outcomes inside the central intervals of a statement.

    Args:
        statement: One of `STATEMENTS`.
        level: The level of the intervals.
    """

    statement: str
    level: float = 0.8

    def __call__(self, result: Result) -> float:
        pits = np.array(trace(result, f"pit_{self.statement}"))
        tail = round(0.5 - self.level / 2, 3)
        return float(np.mean((tail < pits) & (pits <= round(1.0 - tail, 3))))


@dataclass(frozen=True)
class CentralError:
    """The mean distance of a run's coverage to the stated coverage, over `LEVELS`.

    Args:
        statement: One of `STATEMENTS`.
    """

    statement: str

    def __call__(self, result: Result) -> float:
        gaps = [abs(Coverage(self.statement, level)(result) - level) for level in LEVELS]
        return float(np.mean(gaps))


@dataclass(frozen=True)
class LogMean:
    """The natural logarithm of the mean of a record.

    Args:
        name: The name of the record.
    """

    name: str

    def __call__(self, result: Result) -> float:
        return math.log(np.mean(trace(result, self.name)))


def _means(runs: Sequence[Sequence[Result]], score: Score) -> list[float]:
    """A score by problem, averaged over seeds; problems without runs are left out."""
    return [float(np.mean([*map(score, results)])) for results in runs if results]


def error_of_chance(count: int) -> float:
    """The mean `CentralError` of ``count`` outcomes if the stated distribution is true."""
    hits = np.arange(count + 1)
    gaps = [stats.binom.pmf(hits, count, p) @ np.abs(hits / count - p) for p in LEVELS]
    return float(np.mean(gaps))


@dataclass(frozen=True)
class AnyModelReport:
    """Each kind of model, compared with and without calibration.

    Args:
        cases: The problems of each case, over which a seed's values are averaged.
        methods: The kinds of model.
    """

    cases: Mapping[str, tuple[str, ...]]
    methods: tuple[str, ...]

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        margin = margin_of(suite)
        every = list(collected.values())
        return page(
            "any_model",
            judged=NUM_JUDGED,
            chance=f"{error_of_chance(NUM_JUDGED):.3f}",
            margin=margin,
            comparisons=self._comparisons(margin, every),
            over_problems=self._over_problems(every),
            coverage=self._by_case_table(collected, Coverage, ".2f"),
            errors=self._by_case_table(collected, CentralError, ".3f"),
            loss=self._changes(collected, "loss"),
            width=self._changes(collected, "width"),
            times=table(
                ["model", "seconds"],
                [[method, over_seeds(every, method, seconds, ".2f")] for method in self.methods],
            ),
        )

    def figure(self, collected: Collected) -> Figure:
        figure, panels = panel_grid(len(self.methods))
        colors = {name: f"C{i}" for i, name in enumerate(STATEMENTS)}
        for panel, method in zip(panels, self.methods, strict=True):
            panel.axhline(error_of_chance(NUM_JUDGED), color="0.5", lw=1, label="chance alone")
            curves = {
                name: [
                    list(seed_means(case, method, CentralError(name)).values())
                    for case in cases_of(self.cases, collected).values()
                ]
                for name in STATEMENTS
            }
            draw_intervals(panel, list(self.cases), curves, colors, connected=False)
            panel.tick_params(axis="x", rotation=20)
            panel.set(title=method, ylim=(0.0, 0.65), ylabel="calibration error")
        share_legend(figure, panels)
        return figure

    def _comparisons(self, margin: float, every: Sequence[ByMethod]) -> list[str]:
        body = []
        for name, statement in (("primary", PRIMARY), ("secondary", SECONDARY)):
            values = {
                method: (
                    seed_means(every, method, CentralError(statement)),
                    seed_means(every, method, CentralError(PLAIN)),
                )
                for method in self.methods
            }
            for method, found in family(values).items():
                means = (mean_with_interval(list(v.values()), ".3f") for v in values[method][::-1])
                count, cells = str(len(found.values)), found.cells(".3f", margin)
                body.append([name, method, statement, count, *means, *cells])
        header = ["family", "model", "calibrated by", "seeds", "plain", "calibrated"]
        header += ["difference", "95 % interval", "p", "detectable", ""]
        return table(header, body)

    def _over_problems(self, every: Sequence[ByMethod]) -> list[str]:
        """Means over problems with intervals; each problem counts with the mean over its seeds."""
        body = []
        for method in self.methods:
            runs = [by_method.get(method, []) for by_method in every]
            plain = _means(runs, CentralError(PLAIN))
            for statement in (PRIMARY, SECONDARY):
                found = _means(runs, CentralError(statement))
                losses = np.subtract(
                    _means(runs, LogMean(f"loss_{statement}")),
                    _means(runs, LogMean(f"loss_{PLAIN}")),
                )
                cells = (
                    mean_with_interval(values, form)
                    for values, form in (
                        (plain, ".3f"),
                        (found, ".3f"),
                        (np.subtract(found, plain).tolist(), "+.3f"),
                    )
                )
                mean, bounds = percent_of_logarithms(losses.tolist())
                body.append([method, statement, *cells, f"{mean} ({bounds})"])
        header = ["model", "calibrated by", "plain", "calibrated", "difference", "loss"]
        return table(header, body)

    def _by_case_table(self, collected: Collected, score: type, form: str) -> list[str]:
        """Means with intervals: a row for each model and statement, and a column for each case."""
        cases = cases_of(self.cases, collected)
        body = []
        for method in self.methods:
            for name in STATEMENTS:
                cells = [over_seeds(case, method, score(name), form) for case in cases.values()]
                body.append([method, name, *cells])
        return table(["model", "", *cases], body)

    def _changes(self, collected: Collected, size: str) -> list[str]:
        """Changes of the loss or of the width, in percent."""
        cases = {**cases_of(self.cases, collected), "all": [*collected.values()]}
        body = [
            [method, statement, *(self._change(c, method, statement, size) for c in cases.values())]
            for method in self.methods
            for statement in (PRIMARY, SECONDARY)
        ]
        return table(["model", "calibrated by", *cases], body)

    def _change(self, case: Sequence[ByMethod], method: str, statement: str, size: str) -> str:
        own, other = (
            seed_means(case, method, LogMean(f"{size}_{name}")) for name in (statement, PLAIN)
        )
        mean, bounds = percent_of_logarithms(differences(own, other))
        return f"{mean} ({bounds})"
