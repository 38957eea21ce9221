"""The report of suite `tail_only`: regret without noise, and probabilities of good values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework.comparisons import differences_by_problem, grouped_families
from benchmarks.framework.markdown import mean_with_interval, number, over_seeds, page, table
from benchmarks.framework.metrics import seconds_per_evaluation, trace
from benchmarks.framework.plots import figure_of_curves
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import (
    ByMethod,
    Collected,
    Result,
    Score,
    cases_of,
    methods_in,
    seed_means,
)
from benchmarks.framework.suite import Suite

# Regret below this, in units of the objective's spread over the box, is irrelevant: it is the
# standard deviation of the noise in the process.
FLOOR = 1e-3


def log_regrets(result: Result) -> list[float]:
    """Decimal logarithms of the regret after the initial design and each evaluation."""
    (spread,) = trace(result, "spread")
    return [math.log10(max(r / spread, FLOOR)) for r in result.regret_by_outcome]


def along(result: Result) -> float:
    """The mean of `log_regrets` over all evaluations."""
    return float(np.mean(log_regrets(result)[1:]))


def final(result: Result) -> float:
    return log_regrets(result)[-1]


def overstated(result: Result) -> float:
    """The mean stated probability of an improvement minus the share of improvements."""
    return float(np.mean(trace(result, "stated")) - np.mean(trace(result, "improved")))


def occurrence(result: Result) -> float:
    """The distance between stated and true shares of good values in the box."""
    (stated,), (found,) = (trace(result, name) for name in ("box_stated", "box_found"))
    return abs(stated - found)


def brier(result: Result) -> float:
    (value,) = trace(result, "box_brier")
    return value


FURTHER: dict[str, Score] = {
    "mean of log10 regret": along,
    "final": final,
    "overstated": overstated,
    "occurrence": occurrence,
    "Brier score": brier,
    "s": seconds_per_evaluation,
}


@dataclass(frozen=True)
class TailReport:
    """Declared comparisons by group of problems, and tables of groups and problems.

    Args:
        subject: The method that is compared with the methods of all families.
        families: The other methods, by the name of the family of comparisons.
        groups: The problems of each group, over which a seed's values are averaged.
    """

    subject: str
    families: Mapping[str, tuple[str, ...]]
    groups: Mapping[str, tuple[str, ...]]

    def lines(self, suite: Suite, collected: Collected) -> list[str]:
        methods = [method.name for method in suite.methods]
        cases, compared, further = cases_of(self.groups, collected), [], []
        for kind, others in self.families.items():
            pairs = [(self.subject, other) for other in others]
            families = grouped_families(cases, pairs, (along, final))
            for (group, _, other), (found, beside) in families.items():
                cells = [*found.cells(".3f", margin_of(suite))]
                cells.append(mean_with_interval(beside.values, "+.3f"))
                compared.append([kind, group, other, str(len(found.values)), *cells])
        for group, case in cases.items():
            further += [
                [group, m, *(over_seeds(case, m, score, ".3f") for score in FURTHER.values())]
                for m in methods
            ]
        header = ["family", "problems", f"{self.subject} less", "seeds", "mean of log10 regret"]
        header += ["95 % interval", "p", "detectable", "", "final"]
        return page(
            "tail_only",
            floor=FLOOR,
            margin=margin_of(suite),
            comparisons=table(header, compared),
            groups=table(["problems", "method", *FURTHER], further),
            problems=_by_problem(collected, methods, self.subject),
        )

    def figure(self, collected: Collected) -> Figure:
        """Draw a panel for each group, since the comparisons average over its problems."""
        curves = {
            group: {method: mean_log_regrets(case, method) for method in methods_in(case)}
            for group, case in cases_of(self.groups, collected).items()
            if case
        }
        return figure_of_curves(curves, "evaluations", "log10 of regret")


def mean_log_regrets(case: Sequence[ByMethod], method: str) -> np.ndarray:
    """The `log_regrets` of each seed, averaged over the problems, ``seeds x steps``."""
    num_steps = len(case[0][method][0].regret_by_outcome)
    scores = (lambda result, step=step: log_regrets(result)[step] for step in range(num_steps))
    by_step = [seed_means(case, method, score) for score in scores]
    return np.array([[*means.values()] for means in by_step]).T


def _by_problem(collected: Collected, methods: list[str], subject: str) -> list[str]:
    """The subject's mean, and the differences of the other methods to it."""
    others = [method for method in methods if method != subject]
    rows = differences_by_problem(collected, others, subject, along)
    body = [[problem, number(mean), *cells] for problem, mean, cells in rows]
    return table(["problem", subject, *others], body)
