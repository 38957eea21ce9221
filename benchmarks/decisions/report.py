"""The report of the suites on decisions: violations compared with the stated rate, and rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.decisions import analysis
from benchmarks.decisions.analysis import RecommendedRegret, RecommendedSafe, ViolationGap
from benchmarks.framework import comparisons, metrics, statistics
from benchmarks.framework.markdown import interval, page, sections, table
from benchmarks.framework.plots import PANEL_SIZE, method_colors, panel_grid, share_legend
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import (
    ByMethod,
    Collected,
    Score,
    by_seed,
    methods_in,
    seed_means,
)
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite

RATES = (analysis.violation_rate, analysis.miss_rate, analysis.true_violation_rate)

# A limit is not kept from the first rate of violations on, and kept up to the second, to rounding.
FAILING, KEPT = 0.15 - 1e-9, 0.12 + 1e-9


@dataclass(frozen=True)
class DecisionReport:
    """Violations, rewards and recommendations by case, and by problem.

    Args:
        stated: The stated rate of violations.
        cases: Suffixes of the names of problems that belong together.
        primary: The method whose comparison with the baseline is primary.
        multiples: Factors of the plain quantile by the name of the method, in increasing order.
        hidden: The methods of `multiples` that tables do not show.
        page: The page with placeholders for the tables.
    """

    stated: float
    cases: tuple[str, ...]
    primary: str
    multiples: Mapping[str, float]
    hidden: tuple[str, ...]
    page: str = "decisions"

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        return page(self.page, **self._slots(suite, collected))

    def figure(self, collected: Collected) -> Figure:
        cases = self._by_case(collected)
        colors = method_colors(self._shown(collected.values()))
        height = 1.0 + 0.23 * len(colors)  # space for their names
        figure, panels = panel_grid(2 * len(cases), panel_size=(PANEL_SIZE[0], height))
        for (name, case), left, right in zip(cases.items(), panels[::2], panels[1::2], strict=True):
            self._draw_rates(left, case, colors)
            left.set_title(name)
            self._draw_rewards(right, case, colors)
        # The same scale for all cases shows whether a rule keeps its rate.
        most = max(panel.get_xlim()[1] for panel in panels)
        for panel in panels:
            panel.set_xlim(0.0, most)
        share_legend(figure, panels[1::2])
        return figure

    # ------------------------------------------------------------ tables

    def _slots(self, suite: Suite[Any, Any], collected: Collected) -> dict[str, Any]:
        """The values of the page's placeholders."""
        cases = self._by_case(collected)
        return {
            "stated": 100 * self.stated,
            "baseline": suite.baseline,
            "plain": self.primary,
            "margin": margin_of(suite),
            "violations": self._violations(suite, cases),
            "not_kept": self._not_kept(collected),
            "factors": ", ".join(f"{k:g}" for k in self.multiples.values()),
            "matched": self._matched(cases),
            "recommended": self._recommended(cases),
            "problems": sections(collected, self._problem_table),
        }

    def _rows(
        self, cases: Mapping[str, list[ByMethod]], cells: Callable[..., Sequence[str] | None]
    ) -> list[list[str]]:
        """A row for each method in each case, except where ``cells`` returns None."""
        found = (
            (name, method, cells(name, case, method))
            for name, case in cases.items()
            for method in self._shown(case)
        )
        return [[name, method, *row] for name, method, row in found if row is not None]

    def _violations(self, suite: Suite[Any, Any], cases: Mapping[str, list[ByMethod]]) -> list[str]:
        compared = self._comparisons(suite, cases)
        scores: dict[str, tuple[Score, float, str]] = {
            "missed, %": (analysis.miss_rate, 100.0, ".1f"),
            "true rate, %": (analysis.true_violation_rate, 100.0, ".1f"),
            "certified, %": (analysis.certified_share, 100.0, ".0f"),
            "reward": (analysis.reward, 1.0, ".3f"),
        }

        def cells(name: str, case: list[ByMethod], method: str) -> list[str]:
            rates = [100 * rate for rate in _values(case, method, analysis.violation_rate)]
            return [
                str(len(rates)),
                _mean(rates, ".1f"),
                interval(rates, ".1f"),
                _mean(_values(case, method, ViolationGap(self.stated)), ".4f"),
                *compared.get((name, method), ["–"] * 5),
                *(
                    _mean([unit * v for v in _values(case, method, score)], form)
                    for score, unit, form in scores.values()
                ),
            ]

        header = ["case", "method", "seeds", "violated, %", "95 % interval", "gap"]
        header += [f"gap, difference to {suite.baseline}", "95 % interval", "p", "detectable", ""]
        return table([*header, *scores], self._rows(cases, cells))

    def _comparisons(
        self, suite: Suite[Any, Any], cases: Mapping[str, list[ByMethod]]
    ) -> dict[tuple[str, str], list[str]]:
        """Cells that compare each method with the baseline, with Holm's correction by family."""
        cells: dict[tuple[str, str], list[str]] = {}
        gap, margin = ViolationGap(self.stated), margin_of(suite)
        hidden = (suite.baseline, *self.hidden)
        rivals = [method.name for method in suite.methods if method.name not in hidden]
        for methods in ([self.primary], [m for m in rivals if m != self.primary]):
            pairs = {
                (name, method): (
                    values_by_seed(cases.get(name, []), method, gap),
                    values_by_seed(cases.get(name, []), suite.baseline, gap),
                )
                for name in self.cases
                for method in methods
            }
            for key, difference in comparisons.family(pairs).items():
                cells[key] = difference.cells(".4f", margin)
        return cells

    def _not_kept(self, collected: Collected) -> list[str]:
        """Violations of all methods on the problems where the primary method violates too often."""
        rates = [
            {name: analysis.pooled_rate(results)[0] for name, results in by_method.items()}
            for by_method in collected.values()
        ]
        failing = [found for found in rates if found.get(self.primary, 0.0) >= FAILING]
        body = []
        for method in self._shown(failing):
            found = [r[method] for r in failing if not np.isnan(r.get(method, np.nan))]
            if found:
                kept = str(sum(rate <= KEPT for rate in found))
                percents = (f"{100 * rate:.1f}" for rate in (np.mean(found), max(found)))
                body.append([method, str(len(found)), kept, *percents])
        header = ["method", "problems", "kept in", "mean violated, %", "most violated, %"]
        return table(header, body)

    def _matched(self, cases: Mapping[str, list[ByMethod]]) -> list[str]:
        def cells(name: str, case: list[ByMethod], method: str) -> list[str] | None:
            if method in self.multiples:
                return None
            found = analysis.matched_reward(case, method, self.multiples)
            if found is None:
                return None
            low, high = found.interval
            return [
                f"{found.difference:+.3f}",
                f"{low:+.3f} to {high:+.3f}",
                ", ".join(f"{factor:.2f}" for factor in found.factors),
                f"{found.outside} outside" if found.outside else "",
            ]

        header = ["case", "method", "reward at matched violations", "95 % interval", "factors", ""]
        return table(header, self._rows(cases, cells))

    def _recommended(self, cases: Mapping[str, list[ByMethod]]) -> list[str]:
        def cells(name: str, case: list[ByMethod], method: str) -> list[str]:
            safe = [100 * v for v in _values(case, method, RecommendedSafe(self.stated))]
            regret = Estimate.of(_values(case, method, RecommendedRegret(self.stated)))
            return [_mean(safe, ".0f"), interval(safe, ".0f"), _estimate(regret)]

        header = ["case", "method", "truly safe, %", "95 % interval", "regret if safe"]
        return table(header, self._rows(cases, cells))

    def _problem_table(self, by_method: ByMethod) -> list[str]:
        body = []
        for method, results in by_method.items():
            rate, low, high = (100 * value for value in analysis.pooled_rate(results))
            safe = [100 * RecommendedSafe(self.stated)(r) for r in results]
            gap, true, certified, earned, regret = (
                list(by_seed(results, score).values())
                for score in (
                    ViolationGap(self.stated),
                    analysis.true_violation_rate,
                    analysis.certified_share,
                    analysis.reward,
                    RecommendedRegret(self.stated),
                )
            )
            body.append(
                [
                    method,
                    str(len(results)),
                    "–" if np.isnan(rate) else f"{rate:.1f}",
                    "–" if np.isnan(low) else f"{low:.1f} to {high:.1f}",
                    _mean(gap, ".4f"),
                    _mean([100 * value for value in true], ".1f"),
                    _mean([100 * value for value in certified], ".0f"),
                    _estimate(Estimate.of(earned)),
                    _mean(safe, ".0f"),
                    _estimate(Estimate.of(regret)),
                    _mean([metrics.seconds(r) for r in results], ".1f"),
                ]
            )
        header = ["method", "seeds", "violated, %", "95 % interval", "gap", "true rate, %"]
        return table([*header, "certified, %", "reward", "safe, %", "regret if safe", "s"], body)

    # ------------------------------------------------------------ panels

    def _draw_rates(self, panel: Axes, case: list[ByMethod], colors: Mapping[str, str]) -> None:
        methods = self._shown(case)
        for i, method in enumerate(methods):
            rates = [100 * rate for rate in _values(case, method, analysis.violation_rate)]
            if not rates:
                continue
            mean = float(np.mean(rates))
            low, high = statistics.student_interval(rates) if len(rates) > 1 else (mean, mean)
            reach = [[mean - low], [high - mean]]
            panel.errorbar([mean], [i], xerr=reach, fmt="o", color=colors[method], capsize=3)
        panel.axvline(100 * self.stated, color="black", linewidth=0.8, linestyle="--")
        panel.set_yticks(range(len(methods)), methods)
        panel.set_ylim(len(methods) - 0.5, -0.5)
        panel.set_xlabel("violated, %")

    def _draw_rewards(self, panel: Axes, case: list[ByMethod], colors: Mapping[str, str]) -> None:
        at = {
            method: (
                100 * float(np.mean(_values(case, method, analysis.violation_rate))),
                float(np.mean(_values(case, method, analysis.reward))),
            )
            for method in methods_in(case)
            if _values(case, method, analysis.reward)
        }
        line = [at[name] for name in self.multiples if name in at]
        if len(line) > 1:
            panel.plot(*zip(*line, strict=True), ".-", color="silver", label="plain x k", zorder=1)
        for method in self._shown(case):
            if method in at:
                panel.scatter(*at[method], color=colors[method], label=method, zorder=2)
        panel.axvline(100 * self.stated, color="black", linewidth=0.8, linestyle="--")
        panel.set(xlabel="violated, %", ylabel="mean reward")

    # ------------------------------------------------------------ selection

    def _by_case(self, collected: Collected) -> dict[str, list[ByMethod]]:
        found = {
            case: [runs for name, runs in collected.items() if name.endswith(f"_{case}")]
            for case in self.cases
        }
        return {case: runs for case, runs in found.items() if runs}

    def _shown(self, case: Any) -> list[str]:
        return [name for name in methods_in(case) if name not in self.hidden]


def _values(case: Sequence[ByMethod], method: str, score: Score) -> list[float]:
    return list(values_by_seed(case, method, score).values())


def values_by_seed(case: Sequence[ByMethod], method: str, score: Score) -> dict[int, float]:
    """Averages over a case by seed; rates are weighted by their numbers of certified rounds."""
    of_rates = isinstance(score, ViolationGap) or score in RATES
    weight = analysis.certified_rounds if of_rates else None
    return seed_means(case, method, score, weight)


def _mean(values: Sequence[float], form: str) -> str:
    return f"{np.mean(values):{form}}" if len(values) else "–"


def _estimate(value: Estimate) -> str:
    """The estimate with three decimals, as for rewards."""
    if np.isnan(value.mean):
        return "–"
    error = "" if np.isnan(value.standard_error) else f" ± {value.standard_error:.3f}"
    return f"{value.mean:.3f}{error}"
