"""The report of suite `any_model`: what calibration changes for each kind of model."""

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
from benchmarks.framework.markdown import mean_with_interval, table
from benchmarks.framework.metrics import seconds, trace
from benchmarks.framework.plots import draw_intervals, panel_grid, share_legend
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.results import ByMethod, Collected, Result, Score, seed_means
from benchmarks.framework.suite import Suite

# Of central intervals.
LEVELS = tuple(round(0.5 + 0.05 * j, 2) for j in range(10))
PLAIN, PRIMARY, SECONDARY = "plain", "recalibrated", "localized"


@dataclass(frozen=True)
class Coverage:
    """The share of a run's outcomes inside the central intervals of a statement.

    Args:
        statement: See `STATEMENTS`.
        level: That of the intervals.
    """

    statement: str
    level: float = 0.8

    def __call__(self, result: Result) -> float:
        """See `Score`."""
        pits = np.array(trace(result, f"pit_{self.statement}"))
        tail = round(0.5 - self.level / 2, 3)
        return float(np.mean((tail < pits) & (pits <= round(1.0 - tail, 3))))


@dataclass(frozen=True)
class CentralError:
    """The mean distance of a run's coverage to what is stated, over `LEVELS`.

    Args:
        statement: See `STATEMENTS`.
    """

    statement: str

    def __call__(self, result: Result) -> float:
        """See `Score`."""
        gaps = [abs(Coverage(self.statement, level)(result) - level) for level in LEVELS]
        return float(np.mean(gaps))


@dataclass(frozen=True)
class LogMean:
    """The natural logarithm of the mean of a record.

    Args:
        name: Of the record.
    """

    name: str

    def __call__(self, result: Result) -> float:
        """See `Score`."""
        return math.log(np.mean(trace(result, self.name)))


def _means(runs: Sequence[Sequence[Result]], score: Score) -> list[float]:
    """A score by problem, averaged over seeds; problems without runs are left out."""
    return [float(np.mean([*map(score, results)])) for results in runs if results]


def error_of_chance(count: int) -> float:
    """The `CentralError` that ``count`` outcomes have on average if what is stated is true."""
    hits = np.arange(count + 1)
    gaps = [stats.binom.pmf(hits, count, p) @ np.abs(hits / count - p) for p in LEVELS]
    return float(np.mean(gaps))


@dataclass(frozen=True)
class AnyModelReport:
    """Each kind of model, calibrated, compared with itself as it is.

    Args:
        cases: The problems of each case, over which a seed's values are averaged.
        methods: The kinds of model.
    """

    cases: Mapping[str, tuple[str, ...]]
    methods: tuple[str, ...]

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """The comparisons over all problems, then coverage, error and loss by case."""
        every = [collected[p.name] for p in suite.problems if p.name in collected]
        return [
            *self._comparisons(margin_of(suite), every),
            *self._over_problems(every),
            *self._coverage(collected),
            *self._errors(collected),
            *self._losses(collected),
            *self._times(every),
        ]

    def figure(self, collected: Collected) -> Figure:
        """The calibration error of each kind of model by case: before, and after."""
        figure, panels = panel_grid(len(self.methods))
        colors = {name: f"C{i}" for i, name in enumerate(STATEMENTS)}
        for panel, method in zip(panels, self.methods, strict=True):
            panel.axhline(error_of_chance(NUM_JUDGED), color="0.5", lw=1, label="chance alone")
            curves = {
                name: [
                    list(seed_means(case, method, CentralError(name)).values())
                    for case in self._by_case(collected).values()
                ]
                for name in STATEMENTS
            }
            draw_intervals(panel, list(self.cases), curves, colors, connected=False)
            panel.tick_params(axis="x", rotation=20)
            panel.set(title=method, ylim=(0.0, 0.65), ylabel="calibration error")
        share_legend(figure, panels)
        return figure

    def _by_case(self, collected: Collected) -> dict[str, list[ByMethod]]:
        return {
            case: [collected[problem] for problem in problems if problem in collected]
            for case, problems in self.cases.items()
        }

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
        legend = (
            f"The calibration error of a run is the mean of |coverage - level| over the central "
            f"intervals at {LEVELS[0]:g}, {LEVELS[1]:g}, ..., {LEVELS[-1]:g}, of its last "
            f"{NUM_JUDGED} outcomes. Chance alone makes it {error_of_chance(NUM_JUDGED):.3f} on "
            "average if what is stated is true. It is averaged over all problems for each seed; "
            "differences are paired by seed, and less is better. p is Wilcoxon's, two-sided, after "
            "Holm's correction within the family; detectable is the difference found with a power "
            "of 80 % at its strictest step. `equivalent`: the interval lies within "
            f"± {margin:g}."
        )
        header = ["family", "model", "calibrated by", "seeds", "plain", "calibrated"]
        header += ["difference", "95 % interval", "p", "detectable", ""]
        return ["## Comparisons", "", legend, "", *table(header, body), ""]

    def _over_problems(self, every: Sequence[ByMethod]) -> list[str]:
        """Means with intervals over problems, each of them the mean over its seeds."""
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
        legend = (
            "The calibration error, and by how much calibration changes the loss, with 95 % "
            "intervals over the problems, each of which counts by the mean over its seeds. These "
            "comparisons were not declared and are not tested. The problems of a seed share points "
            "and noise, which the intervals ignore."
        )
        header = ["model", "calibrated by", "plain", "calibrated", "difference", "loss"]
        return ["## Over problems", "", legend, "", *table(header, body), ""]

    def _by_case_table(self, collected: Collected, score: type, form: str) -> list[str]:
        """Means with intervals, a row for each model and statement and a column for each case."""
        cases = self._by_case(collected)
        body = []
        for method in self.methods:
            for name in STATEMENTS:
                cells = [
                    mean_with_interval(list(seed_means(case, method, score(name)).values()), form)
                    for case in cases.values()
                ]
                body.append([method, name, *cells])
        return table(["model", "", *cases], body)

    def _coverage(self, collected: Collected) -> list[str]:
        legend = (
            f"Share of the last {NUM_JUDGED} outcomes inside their stated 80 % intervals, with "
            "95 % intervals over seeds."
        )
        rows = self._by_case_table(collected, Coverage, ".2f")
        return ["## Coverage at 80 %", "", legend, "", *rows, ""]

    def _errors(self, collected: Collected) -> list[str]:
        legend = "As above, by case, without tests."
        rows = self._by_case_table(collected, CentralError, ".3f")
        return ["## Calibration error", "", legend, "", *rows, ""]

    def _losses(self, collected: Collected) -> list[str]:
        """Changes of the loss and of the width, in percent."""
        cases = self._by_case(collected)
        headings = {
            "loss": ("Loss", "loss, the mean of twice the pinball loss over eleven quantiles"),
            "width": ("Width", "width of the 80 % intervals"),
        }
        lines = []
        for size, (heading, words) in headings.items():
            body = [
                [
                    method,
                    statement,
                    *(self._change(case, method, statement, size) for case in cases.values()),
                    self._change([*collected.values()], method, statement, size),
                ]
                for method in self.methods
                for statement in (PRIMARY, SECONDARY)
            ]
            legend = (
                f"By how much calibration changes a run's mean {words}: differences of "
                "logarithms, in percent of the plain model's, with 95 % intervals over seeds. Less "
                "is better for the loss alone."
            )
            header = ["model", "calibrated by", *cases, "all"]
            lines += [f"## {heading}", "", legend, "", *table(header, body), ""]
        return lines

    def _change(self, case: Sequence[ByMethod], method: str, statement: str, size: str) -> str:
        own, other = (
            seed_means(case, method, LogMean(f"{size}_{name}")) for name in (statement, PLAIN)
        )
        mean, bounds = percent_of_logarithms(differences(own, other))
        return f"{mean} ({bounds})"

    def _times(self, every: Sequence[ByMethod]) -> list[str]:
        score: Score = seconds
        body = [
            [method, mean_with_interval(list(seed_means(every, method, score).values()), ".2f")]
            for method in self.methods
        ]
        legend = "Seconds of a run, for its fits and the replays of its calibrators."
        return ["## Time", "", legend, "", *table(["model", "seconds"], body), ""]
