"""The report of suite `radio`: the claims of the paper, comparisons, and true capacities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework import metrics, statistics
from benchmarks.framework.comparisons import Difference, family, verdict
from benchmarks.framework.markdown import estimate, page, sections, table
from benchmarks.framework.plots import curves_figure
from benchmarks.framework.protocol import margin_of
from benchmarks.framework.results import (
    ByMethod,
    Collected,
    Result,
    Run,
    Score,
    by_seed,
    scores_of,
)
from benchmarks.framework.statistics import Estimate, student_interval
from benchmarks.framework.suite import Suite


def capacities(result: Result, point: str) -> list[float]:
    """True capacities round by round, the first after the initial points.

    Args:
        result: A result.
        point: ``"recommended"``, ``"outcome"`` or ``"evaluated"``.
    """
    if point == "recommended":
        point = "outcome" if result.regret_by_mean is None else "mean"
    # The optimal value is 0.
    return [-regret for regret in metrics.regret_trace(result, point)]


def recommended(result: Result) -> float:
    """At the recommended point, at the end."""
    return capacities(result, "recommended")[-1]


def at_largest_outcome(result: Result) -> float:
    """At the point with the largest outcome, at the end."""
    return capacities(result, "outcome")[-1]


def best_evaluated(result: Result) -> float:
    """At the best point evaluated."""
    return capacities(result, "evaluated")[-1]


def log_recommended(result: Result) -> float:
    """The primary endpoint: differences are percents of the capacity, nearly."""
    return 100.0 * math.log(recommended(result))


def coverage(result: Result) -> float:
    """The share of outcomes inside their intervals; NaN without a model."""
    covered = result.extras.get("covered")
    return math.nan if covered is None else float(np.mean(metrics.trace(result, "covered")))


class Claim(NamedTuple):
    """A hypothesis of the protocol on one problem: the method is better by more than the margin."""

    hypothesis: int
    problem: str
    method: str
    rival: str


class Compared(NamedTuple):
    """A method minus its rival on a problem."""

    problem: str
    method: str
    rival: str


@dataclass(frozen=True)
class RadioReport:
    """Claims, comparisons with one method, and capacities by problem.

    Args:
        subject: The method that the primary comparisons are about.
        rivals: The methods that it is compared with.
        claims: The hypotheses. Each is of a primary or secondary comparison, either way round.
    """

    subject: str
    rivals: tuple[str, ...]
    claims: tuple[Claim, ...] = ()

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        margin = margin_of(suite)
        primary, secondary = (
            family({pair: _scores(pair, collected) for pair in declared})
            for declared in self.pairs(suite)
        )
        return page(
            "radio",
            margin=margin,
            claims=self._claims({**primary, **secondary}, margin),
            primary=_comparisons(primary, margin),
            secondary=_comparisons(secondary, margin),
            over_rounds=_over_rounds(collected),
            problems=sections(collected, _problem_table, "###"),
        )

    def figure(self, collected: Collected) -> Figure:
        return curves_figure(
            collected, partial(capacities, point="recommended"), "rounds", "capacity, bit/s/Hz"
        )

    def pairs(self, suite: Suite[Any, Any]) -> tuple[list[Compared], list[Compared]]:
        """The primary family, and the secondary one: all other methods with the baseline."""
        primary = [(self.subject, rival) for rival in self.rivals]
        with_baseline = [(m.name, suite.baseline) for m in suite.methods]
        secondary = [
            pair for pair in with_baseline if pair[0] != suite.baseline and pair not in primary
        ]
        first, second = (
            [Compared(problem.name, *pair) for problem in suite.problems for pair in pairs]
            for pairs in (primary, secondary)
        )
        return first, second

    def _claims(self, found: Mapping[Compared, Difference], margin: float) -> list[str]:
        body = []
        for claim in self.claims:
            names = [str(claim.hypothesis), *claim[1:]]
            difference = _difference(claim, found)
            if difference is None:
                body.append([*names, *["–"] * 5, "not run"])
                continue
            said = claim_verdict(student_interval(difference.values), difference.p, margin)
            body.append([*names, *_cells(difference), said])
        header = ["hypothesis", "problem", "method", "better than", "seeds", "difference, %"]
        return table([*header, "95 % interval", "p", "detectable, %", "claim"], body)


def claim_verdict(interval: tuple[float, float], adjusted_p: float, margin: float) -> str:
    """What a difference, the better for being larger, says of the claim that it exceeds the margin.

    In the words of the protocol: ``reproduced`` if the interval lies above the margin and the test
    is significant, ``reversed`` if both hold with the opposite sign, ``not reproduced`` if the
    interval lies below the margin; else ``undecided``.
    """
    low, high = interval
    significant = adjusted_p < statistics.SIGNIFICANCE
    if significant and low > margin:
        return "reproduced"
    if significant and high < -margin:
        return "reversed"
    return "not reproduced" if high < margin else "undecided"


def _difference(claim: Claim, found: Mapping[Compared, Difference]) -> Difference | None:
    """The comparison that a claim is of; with the opposite sign if it was made the other way."""
    same = found.get(Compared(claim.problem, claim.method, claim.rival))
    opposite = found.get(Compared(claim.problem, claim.rival, claim.method))
    if same is not None or opposite is None:
        return same
    return replace(opposite, values=tuple(-value for value in opposite.values))


def _scores(pair: Compared, collected: Collected) -> tuple[dict[int, float], dict[int, float]]:
    """The primary endpoint of both methods by seed."""
    own, other = (
        scores_of(Run(pair.problem, name), collected, log_recommended)
        for name in (pair.method, pair.rival)
    )
    return own, other


def _comparisons(found: Mapping[Compared, Difference], margin: float) -> list[str]:
    """The methods of each pair on each problem."""
    body = []
    for names, difference in found.items():
        low, high = student_interval(difference.values)
        # There, less is better.
        said = verdict((-high, -low), difference.p, margin)
        body.append([*names, *_cells(difference), said])
    header = ["problem", "method", "rival", "seeds", "difference, %", "95 % interval", "p"]
    return table([*header, "detectable, %", ""], body)


def _cells(difference: Difference) -> list[str]:
    return [str(len(difference.values)), *difference.tested_cells(".1f")]


# Of the 250 rounds.
ROUNDS = (0, 25, 50, 100, 150, 200, 250)


def _over_rounds(collected: Collected) -> list[str]:
    """Capacities at some rounds, a row for each method on each problem."""
    body = []
    for problem, by_method in collected.items():
        for method, results in by_method.items():
            curves = np.array([capacities(result, "recommended") for result in results])
            cells = [
                estimate(Estimate.of(curves[:, at].tolist())) if at < curves.shape[1] else "–"
                for at in ROUNDS
            ]
            body.append([problem, method, *cells])
    return table(["problem", "method", *map(str, ROUNDS)], body)


def _problem_table(by_method: ByMethod) -> list[str]:
    header = ["method", "seeds", "recommended", "largest outcome", "best", "coverage", "s"]
    body = []
    for method, results in by_method.items():
        scores: tuple[Score, ...] = (recommended, at_largest_outcome, best_evaluated, coverage)
        values = [Estimate.of(list(by_seed(results, score).values())) for score in scores]
        # The machine has stood still during some runs, which a mean would show and nothing else.
        seconds = np.median([metrics.seconds(result) for result in results])
        body.append([method, str(len(results)), *map(estimate, values), f"{seconds:.1f}"])
    return table(header, body)
