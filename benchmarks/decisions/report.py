"""The report of suite `decisions`: violations beside the stated rate, and what they earn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.decisions import analysis
from benchmarks.decisions.analysis import RecommendedRegret, RecommendedSafe, ViolationGap
from benchmarks.framework import comparisons, metrics, statistics
from benchmarks.framework.markdown import interval, table
from benchmarks.framework.plots import PANEL_SIZE, method_colors, panel_grid, share_legend
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.results import ByMethod, Collected, Score, by_seed, methods_in, seed_means
from benchmarks.framework.statistics import Estimate
from benchmarks.framework.suite import Suite

RATES = (analysis.violation_rate, analysis.miss_rate, analysis.true_violation_rate)

# Rates of violations from which on a limit is not kept, and up to which it is, to rounding.
FAILING, KEPT = 0.15 - 1e-9, 0.12 + 1e-9


@dataclass(frozen=True)
class DecisionReport:
    """Violations, rewards and recommendations by case, and by problem.

    Args:
        stated: The rate of violations that is stated.
        cases: Endings of the names of problems that belong together.
        primary: The method whose comparison with the baseline is primary.
        multiples: Factors by the names of the methods that state the plain quantile times them, in
            increasing order.
        hidden: Those of them that are no methods of their own.
    """

    stated: float
    cases: tuple[str, ...]
    primary: str
    multiples: Mapping[str, float]
    hidden: tuple[str, ...]

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """A legend, tables over the functions of each case, and one for each problem."""
        lines = self._case_sections(suite, collected)
        note = "The rate of a problem is that of the certified rounds of all seeds together."
        lines += ["## Problems", "", note, ""]
        for problem, by_method in collected.items():
            lines += [f"## {problem}", "", *self._problem_table(by_method), ""]
        return lines

    def figure(self, collected: Collected) -> Figure:
        """One row per case: rates of violations with their intervals, and rewards by rate."""
        cases = self._by_case(collected)
        colors = method_colors(self._shown(collected.values()))
        height = 1.0 + 0.23 * len(colors)  # for their names
        figure, panels = panel_grid(2 * len(cases), panel_size=(PANEL_SIZE[0], height))
        for (name, case), left, right in zip(cases.items(), panels[::2], panels[1::2], strict=True):
            self._draw_rates(left, case, colors)
            left.set_title(name)
            self._draw_rewards(right, case, colors)
        # The same scale for all cases shows that a rule keeps its rate, or does not.
        most = max(panel.get_xlim()[1] for panel in panels)
        for panel in panels:
            panel.set_xlim(0.0, most)
        share_legend(figure, panels[1::2])
        return figure

    # ------------------------------------------------------------ tables

    def _case_sections(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        cases = self._by_case(collected)
        return [
            *self._violation_section(suite, cases),
            *self._regime_section(collected),
            *self._matched_section(cases),
            *self._recommendation_section(cases),
        ]

    def _violation_section(
        self, suite: Suite[Any, Any], cases: Mapping[str, list[ByMethod]]
    ) -> list[str]:
        baseline, margin = suite.baseline, margin_of(suite)
        header = [
            "case",
            "method",
            "seeds",
            "violated, %",
            "95 % interval",
            "gap",
            f"gap less that of {baseline}",
            "95 % interval",
            "p",
            "detectable",
            "",
            "missed, %",
            "true rate, %",
            "certified, %",
            "reward",
        ]
        compared = self._comparisons(suite, cases)
        body = []
        for name, case in cases.items():
            for method in self._shown(case):
                rates = _values(case, method, analysis.violation_rate)
                gaps = _values(case, method, ViolationGap(self.stated))
                scores = (
                    (analysis.miss_rate, 100.0, ".1f"),
                    (analysis.true_violation_rate, 100.0, ".1f"),
                    (analysis.certified_share, 100.0, ".0f"),
                    (analysis.reward, 1.0, ".3f"),
                )
                body.append(
                    [
                        name,
                        method,
                        str(len(rates)),
                        _mean([100 * rate for rate in rates], ".1f"),
                        interval([100 * rate for rate in rates], ".1f"),
                        _mean(gaps, ".4f"),
                        *compared.get((name, method), ["–"] * 5),
                        *(
                            _mean([unit * v for v in _values(case, method, score)], form)
                            for score, unit, form in scores
                        ),
                    ]
                )
        return ["## Violations", "", self._legend(baseline, margin), "", *table(header, body), ""]

    def _comparisons(
        self, suite: Suite[Any, Any], cases: Mapping[str, list[ByMethod]]
    ) -> dict[tuple[str, str], list[str]]:
        """The cells that compare each method with the baseline, Holm's correction by family."""
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

    def _legend(self, baseline: str, margin: float) -> str:
        return (
            "A violation is a certified round whose outcome exceeds the limit; "
            f"{100 * self.stated:g} % of the certified rounds should be violations. The gap, the "
            "primary endpoint, is the distance of a run's rate of violations to that (a run "
            "without a certified round has the rate 0). Values are averaged over the functions of "
            "a case for each seed, with the numbers of certified rounds as weights for rates and "
            "gaps; means "
            "and Student's 95 % intervals are over seeds. p is Wilcoxon's, two-sided, of the gap "
            f"paired by seed with `{baseline}`, after Holm's correction: over the cases for "
            f"`{self.primary}`, the primary comparison, and over all other ones together. "
            "Detectable is the difference found with a power of 80 % at the strictest step. "
            f"`worse` than `{baseline}` is a larger gap; `equivalent`: the interval lies within "
            f"± {margin:g}. Missed: the outcome exceeds the stated quantile, which lies below "
            "the limit where no better point was found at the limit. The true rate is the mean "
            "true probability of a violation. Reward is the mean noise-free objective over all "
            "rounds, in standard deviations over the box."
        )

    def _regime_section(self, collected: Collected) -> list[str]:
        """Where the primary method violates too often, and what the others do there."""
        rates = {
            problem: {name: analysis.pooled_rate(results)[0] for name, results in by_method.items()}
            for problem, by_method in collected.items()
        }
        failing = {
            problem: by_method
            for problem, by_method in rates.items()
            if by_method.get(self.primary, 0.0) >= FAILING
        }
        body = []
        for method in self._shown(failing.values()):
            found = [r[method] for r in failing.values() if not np.isnan(r.get(method, np.nan))]
            if not found:
                continue
            body.append(
                [
                    method,
                    str(len(found)),
                    str(sum(rate <= KEPT for rate in found)),
                    f"{100 * np.mean(found):.1f}",
                    f"{100 * max(found):.1f}",
                ]
            )
        legend = (
            f"The problems in which `{self.primary}` violates the limit in "
            f"{100 * FAILING:.0f} % or more of the certified rounds of all seeds together. A "
            f"method keeps the limit if its rate is {100 * KEPT:.0f} % or less."
        )
        header = ["method", "problems", "kept in", "mean violated, %", "most violated, %"]
        return ["## Where the limit is not kept", "", legend, "", *table(header, body), ""]

    def _matched_section(self, cases: Mapping[str, list[ByMethod]]) -> list[str]:
        header = ["case", "method", "reward at matched violations", "95 % interval", "factors", ""]
        body = []
        for name, case in cases.items():
            for method in self._shown(case):
                found = analysis.matched_reward(case, method, self.multiples)
                if method in self.multiples or found is None:
                    continue
                low, high = found.interval
                body.append(
                    [
                        name,
                        method,
                        f"{found.difference:+.3f}",
                        f"{low:+.3f} to {high:+.3f}",
                        ", ".join(f"{factor:.2f}" for factor in found.factors),
                        f"{found.outside} outside" if found.outside else "",
                    ]
                )
        legend = (
            "The reward of a method, minus that of the plain quantile times a factor. The factor "
            "is chosen in hindsight for each function, so that both violate the limit equally "
            "often: the difference is the gain over a fixed width with the same rate. Rates are "
            "pooled over seeds and interpolated between the factors "
            f"{', '.join(f'{k:g}' for k in self.multiples.values())}; the nearest factor is taken "
            "where the rate lies outside of their range. Intervals are from resampled seeds."
        )
        return ["## Reward at matched violations", "", legend, "", *table(header, body), ""]

    def _recommendation_section(self, cases: Mapping[str, list[ByMethod]]) -> list[str]:
        header = ["case", "method", "truly safe, %", "95 % interval", "regret if safe"]
        body = []
        for name, case in cases.items():
            for method in self._shown(case):
                safe = [100 * v for v in _values(case, method, RecommendedSafe(self.stated))]
                regret = Estimate.of(_values(case, method, RecommendedRegret(self.stated)))
                body.append(
                    [name, method, _mean(safe, ".0f"), interval(safe, ".0f"), _estimate(regret)]
                )
        legend = (
            "The certified point with the largest posterior mean of the objective after the last "
            "round. It is truly safe if its outcome exceeds the limit with a probability of at "
            f"most {100 * self.stated:g} %; a run without such a point counts as not safe. Regret "
            "is to the best truly safe value, mean ± standard error."
        )
        return ["## Recommended points", "", legend, "", *table(header, body), ""]

    def _problem_table(self, by_method: ByMethod) -> list[str]:
        header = [
            "method",
            "seeds",
            "violated, %",
            "95 % interval",
            "gap",
            "true rate, %",
            "certified, %",
            "reward",
            "safe, %",
            "regret if safe",
            "s",
        ]
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
        return table(header, body)

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
        panel.plot(*zip(*line, strict=True), ".-", color="grey", label="plain x k", zorder=1)
        for method in self._shown(case):
            if method in at:
                panel.scatter(*at[method], color=colors[method], label=method, zorder=2)
        panel.axvline(100 * self.stated, color="black", linewidth=0.8, linestyle="--")
        panel.set(xlabel="violated, %", ylabel="mean reward")

    # ------------------------------------------------------------ who is where

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
    """Averages over a case; rates are weighted by the certified rounds that they are of."""
    of_rates = isinstance(score, ViolationGap) or score in RATES
    weight = analysis.certified_rounds if of_rates else None
    return seed_means(case, method, score, weight)


def _mean(values: Sequence[float], form: str) -> str:
    return f"{np.mean(values):{form}}" if len(values) else "–"


def _estimate(value: Estimate) -> str:
    """With as many decimals as rewards have."""
    if np.isnan(value.mean):
        return "–"
    error = "" if np.isnan(value.standard_error) else f" ± {value.standard_error:.3f}"
    return f"{value.mean:.3f}{error}"
