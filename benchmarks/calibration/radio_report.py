"""The report of the suites on a radio network: the paper's claims, and true capacities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework import metrics
from benchmarks.framework.comparisons import Difference, family_of_runs, verdict
from benchmarks.framework.markdown import page, scores_by_method, sections, table
from benchmarks.framework.plots import curves_figure
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.replicate_result import Collected, Result, Run, Score
from benchmarks.framework.statistics import SIGNIFICANCE, student_interval
from benchmarks.framework.suite import Suite


def capacities(result: Result, point: str = "recommended") -> list[float]:
    """True capacities after the initial points and after each round.

    Args:
        result: A result.
        point: ``"recommended"``, ``"outcome"`` or ``"evaluated"``.
    """
    if point == "recommended":
        point = "outcome" if result.regret_by_mean is None else "mean"
    # The optimal value is 0.
    return [-regret for regret in metrics.regret_trace(result, point)]


def log_recommended(result: Result) -> float:
    """The primary endpoint, whose differences are approximately percents of the capacity."""
    return 100.0 * math.log(capacities(result)[-1])


def coverage(result: Result) -> float:
    """The share of outcomes inside their intervals; NaN without a model."""
    covered = result.extras.get("covered")
    return math.nan if covered is None else float(np.mean(metrics.trace(result, "covered")))


# The scores of a method on a problem.
SCORES: dict[str, Score] = {
    "recommended": lambda result: capacities(result)[-1],
    "largest outcome": lambda result: capacities(result, "outcome")[-1],
    "best": lambda result: capacities(result, "evaluated")[-1],
    "coverage": coverage,
    "s": metrics.seconds,
}


LINE_STYLES = {"0.15": ":", "0.35": "--", "0.45": "-."}


def claim_verdict(found: Difference, margin: float) -> str:
    """The verdict on the claim that a difference, for which more is better, exceeds the margin.

    ``reproduced`` if the interval lies above the margin and the test is significant; ``reversed``
    if both hold with the opposite sign; ``not reproduced`` if the interval lies below the margin;
    otherwise ``undecided``.
    """
    low, high = student_interval(found.values)
    significant = found.p < SIGNIFICANCE
    if significant and low > margin:
        return "reproduced"
    if significant and high < -margin:
        return "reversed"
    return "not reproduced" if high < margin else "undecided"


def without_level(method: str) -> str:
    """The name of a method without the level at its end, if any."""
    name, _, level = method.rpartition("_")
    return name if level in LINE_STYLES else method


def line_style(method: str) -> str:
    """The style of a method's line, by its level."""
    return LINE_STYLES.get(method.rpartition("_")[2], "-")


@dataclass(frozen=True)
class RadioReport:
    """Comparisons of pairs of methods on every problem, and capacities.

    Args:
        pairs: The pairs of the primary comparisons.
        secondary: The pairs of the secondary comparisons.
    """

    pairs: tuple[tuple[str, str], ...]
    secondary: tuple[tuple[str, str], ...] = ()

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        margin = margin_of(suite)
        body = []
        for name, pairs in {"primary": self.pairs, "secondary": self.secondary}.items():
            runs = [
                (Run(problem.name, own), Run(problem.name, rival))
                for problem in suite.problems
                for own, rival in pairs
            ]
            found = family_of_runs(runs, collected, log_recommended)
            for (run, other), compared in found.items():
                low, high = student_interval(compared.values)
                # `verdict` expects that less is better.
                said = verdict((-high, -low), compared.p, margin)
                cells = [str(len(compared.values)), *compared.tested_cells(".1f"), said]
                body.append([name, *run, other.method, *cells, claim_verdict(compared, margin)])
        header = ["family", "problem", "method", "rival", "seeds", "difference, %"]
        header += ["95 % interval", "p", "detectable, %", "", "claim"]
        return page(
            "radio",
            margin=margin,
            comparisons=table(header, body),
            problems=sections(collected, partial(scores_by_method, scores=SCORES)),
        )

    def figure(self, collected: Collected) -> Figure:
        labels = "rounds", "capacity, bit/s/Hz"
        return curves_figure(collected, capacities, *labels, line_style, without_level)
