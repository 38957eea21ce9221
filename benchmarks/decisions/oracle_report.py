"""The report of suites with an oracle, which compares methods with it and the plain quantile."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.decisions import analysis
from benchmarks.decisions.analysis import RecommendedSafe
from benchmarks.decisions.report import DecisionReport, values_by_seed
from benchmarks.framework.comparisons import differences
from benchmarks.framework.markdown import interval, page, table
from benchmarks.framework.replicate_result import ByMethod, Collected, Result
from benchmarks.framework.statistics import pooled_ratio
from benchmarks.framework.suite import Suite

# The text in the table, by whether violations and reward are worse.
WORSE_IN = {
    (False, False): "neither",
    (True, False): "violations",
    (False, True): "reward",
    (True, True): "both",
}


@dataclass(frozen=True)
class OracleReport(DecisionReport):
    """A `DecisionReport` that also compares methods with the plain quantile and an oracle.

    Args:
        yardsticks: Reference methods, an oracle first. Rewards are stated as shares of theirs.
        beside: Pairs of cases; the first case is compared with the second.
        start_value: Returns the noise-free objective at the starting point of a problem and a seed.
            If given, gains over the start are stated as shares of the oracle's gain.
    """

    page: str = "decisions_with_oracle"
    yardsticks: tuple[str, ...] = ("oracle",)
    beside: tuple[tuple[str, str], ...] = ()
    start_value: Callable[[Any, int], float] | None = None

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        lines = super().lines(suite, collected)
        if self.start_value is None:
            return lines
        rows = [row for p in suite.problems for row in self._gains(p, collected.get(p.name, {}))]
        header = ["problem", "method", "seeds", "gain", f"{self.yardsticks[0]}'s, %"]
        gains = table([*header, "95 % interval"], rows)
        return [*lines, *page("gain_over_start", gains=gains)]

    def _gains(self, problem: Any, by_method: ByMethod) -> list[list[str]]:
        assert self.start_value is not None
        gains = {
            method: {r.seed: analysis.reward(r) - self.start_value(problem, r.seed) for r in runs}
            for method, runs in by_method.items()
        }
        rows, best = [], gains.get(self.yardsticks[0], {})
        for method, own in gains.items():
            mean = f"{np.mean([*own.values()]):.3f}" if own else "–"
            rows.append([problem.name, method, str(len(own)), mean, *_share_of(own, best)])
        return rows

    def _slots(self, suite: Suite[Any, Any], collected: Collected) -> dict[str, Any]:
        cases = self._by_case(collected)
        return {
            **super()._slots(suite, collected),
            "yardsticks": self._known(),
            "beside": self._beside(cases),
            "between_cases": self._between_cases(cases),
        }

    def _beside(self, cases: Mapping[str, list[ByMethod]]) -> list[str]:
        def cells(name: str, case: list[ByMethod], method: str) -> list[str]:
            return [
                *self._compared(case, method),
                *(cell for y in self.yardsticks for cell in self._share(case, method, y)),
                _worst(case, method),
                self._safe(case, method),
            ]

        plain = self.primary
        header = ["case", "method", f"violated, difference to {plain}, %", "95 % interval"]
        header += [f"reward, difference to {plain}", "95 % interval", f"worse than {plain} in"]
        header += [h for y in self.yardsticks for h in (f"reward of {y}'s, %", "95 % interval")]
        header += ["worst run violated, %", "recommended, safe"]
        return table(header, self._rows(cases, cells))

    def _compared(self, case: Sequence[ByMethod], method: str) -> list[str]:
        """Differences of violations and reward to the plain quantile, and which is worse."""
        violations, rewards = (
            differences(values_by_seed(case, method, s), values_by_seed(case, self.primary, s))
            for s in (analysis.violation_rate, analysis.reward)
        )
        if method == self.primary or not violations:
            return ["–"] * 5
        percent = [100 * rate for rate in violations]
        worse = (float(np.mean(percent)) > 0.0, float(np.mean(rewards)) < 0.0)
        return [
            f"{np.mean(percent):+.1f}",
            interval(percent, "+.1f"),
            f"{np.mean(rewards):+.3f}",
            interval(rewards, "+.3f"),
            WORSE_IN[worse],
        ]

    def _known(self) -> str:
        """A description of the yardsticks for the page."""
        oracle, *others = self.yardsticks
        what = f"`{oracle}`, which certifies by the true quantile at the time of the round"
        return what + "".join(
            f", and of `{name}`, the plain quantile of the right process" for name in others
        )

    def _share(self, case: Sequence[ByMethod], method: str, yardstick: str) -> tuple[str, str]:
        return _share_of(*(values_by_seed(case, m, analysis.reward) for m in (method, yardstick)))

    def _safe(self, case: Sequence[ByMethod], method: str) -> str:
        runs = _runs(case, method)
        made = sum(r.extras["recommended_probability"] != [None] for r in runs)
        safe = sum(RecommendedSafe(self.stated)(r) for r in runs)
        return f"{made} of {len(runs)}, {safe:.0f}"

    def _between_cases(self, cases: Mapping[str, list[ByMethod]]) -> list[str]:
        """Reward and violations of a case compared with another case."""
        reward, violated = "reward of the other's, %", "violated, difference to the other's, %"
        header = ["case", "other", "method", reward, "95 % interval", violated, "95 % interval"]
        body = []
        for case, other in self.beside:
            two = cases.get(case, []), cases.get(other, [])
            for method in self._shown(two[0]):
                own, theirs = (values_by_seed(c, method, analysis.reward) for c in two)
                seeds = sorted(own.keys() & theirs.keys())
                ratio = pooled_ratio([own[s] for s in seeds], [theirs[s] for s in seeds])
                share, low, high = (100 * value for value in ratio)
                rates = (values_by_seed(c, method, analysis.violation_rate) for c in two)
                percent = [100 * rate for rate in differences(*rates)]
                cells = [f"{share:.0f}", "–" if np.isnan(low) else f"{low:.0f} to {high:.0f}"]
                cells += [f"{np.mean(percent):+.1f}", interval(percent, "+.1f")]
                body.append([case, other, method, *(cells if seeds else ["–"] * 4)])
        return table(header, body)


def _share_of(own: Mapping[int, float], best: Mapping[int, float]) -> tuple[str, str]:
    """The ratio of sums over the common seeds in percent, and its 95 % interval."""
    seeds = sorted(own.keys() & best.keys())
    share, low, high = pooled_ratio([own[s] for s in seeds], [best[s] for s in seeds])
    return _percent(share), "–" if np.isnan(low) else f"{_percent(low)} to {_percent(high)}"


def _percent(share: float) -> str:
    return "–" if np.isnan(share) else f"{100 * share:.0f}"


def _worst(case: Sequence[ByMethod], method: str) -> str:
    """The largest rate of violations of a run, with the numbers of violations and rounds."""
    worst = max(_runs(case, method), key=analysis.violation_rate)
    rate, certified = analysis.violation_rate(worst), analysis.certified_rounds(worst)
    return f"{100 * rate:.0f} ({rate * certified:.0f} of {certified:.0f})"


def _runs(case: Sequence[ByMethod], method: str) -> list[Result]:
    return [result for by_method in case for result in by_method.get(method, [])]
