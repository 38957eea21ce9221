"""The report of suites that compare calibrators: regret and calibration, and a summary."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from benchmarks.calibration.methods import ALPHA
from benchmarks.framework import metrics, statistics
from benchmarks.framework.markdown import (
    estimate,
    number,
    page,
    paired_cells,
    paired_header,
    percent,
    sections,
    table,
)
from benchmarks.framework.plots import regret_figure
from benchmarks.framework.results import ByMethod, Collected, Result, Score, by_seed, methods_in
from benchmarks.framework.statistics import SIGNIFICANCE, Estimate, PairedTest
from benchmarks.framework.suite import Suite

# The point whose regret is compared, see `metrics.regret_trace`.
INFERENCE = "outcome"

# What is shown of the runs of a method on a problem, beside regret.
SCORES: dict[str, Score] = {
    "miscoverage": metrics.miscoverage,
    "calibration error": metrics.calibration_error,
    "coverage of f, visited": partial(metrics.objective_coverage, place="visited"),
    "coverage of f, box": partial(metrics.objective_coverage, place="box"),
}


@dataclass(frozen=True)
class CalibrationReport:
    """Regret and calibration, with a summary over all problems."""

    def lines(self, suite: Suite, collected: Collected) -> list[str]:
        baseline = suite.baseline
        # There is no percentage of nothing.
        solved = [
            problem
            for problem, runs in collected.items()
            if baseline in runs
            and not any(metrics.final_regrets(runs[baseline], INFERENCE).values())
        ]
        chosen = [runs for name, runs in collected.items() if name not in solved]
        note = f" Without {', '.join(solved)}, where {baseline} has no regret in any run."
        return page(
            "regret_and_calibration",
            baseline=baseline,
            summary=_summary(collected, baseline),
            pooled=_pooled(chosen, baseline),
            solved=note if solved else "",
            problems=sections(collected, partial(_problem_table, baseline=baseline)),
        )

    def figure(self, collected: Collected) -> Figure:
        return regret_figure(collected, INFERENCE)


@dataclass(frozen=True)
class Comparison:
    """One method on one problem, against the baseline."""

    regret: Estimate
    versus_baseline: PairedTest
    fraction_won: float
    area: Estimate
    miscoverage: float


def compare(results: Sequence[Result], baseline: Sequence[Result]) -> Comparison:
    """Judge one method's results on one problem; the baseline's also set the unit of areas."""
    final = metrics.final_regrets(results, INFERENCE)
    reference = metrics.final_regrets(baseline, INFERENCE)
    scale = metrics.initial_scale(baseline, INFERENCE) if baseline else math.nan
    return Comparison(
        regret=Estimate.of(list(final.values())),
        versus_baseline=statistics.paired_test(final, reference),
        fraction_won=statistics.fraction_won(final, reference),
        area=Estimate.of([metrics.area_under_regret(r, INFERENCE, scale) for r in results]),
        miscoverage=Estimate.of([metrics.miscoverage(r) for r in results]).mean,
    )


def _summary(collected: Collected, baseline: str) -> list[str]:
    """Each method over all problems.

    Differences count as significant if Wilcoxon's test says so at 5 % after Holm's correction
    for the number of problems. Their sign is read off the seeds won: one bad seed can
    turn that of the mean.
    """
    body = []
    for method in methods_in(collected.values()):
        found = [
            compare(runs[method], runs.get(baseline, []))
            for runs in collected.values()
            if method in runs
        ]
        adjusted = statistics.holm([c.versus_baseline.wilcoxon_p_value for c in found])
        decided = [c.fraction_won for c, p in zip(found, adjusted, strict=True) if p < SIGNIFICANCE]
        cells = [
            str(sum(won > 0.5 for won in decided)),
            str(sum(won < 0.5 for won in decided)),
            number(float(np.mean([c.fraction_won for c in found]))),
        ]
        body.append(
            [
                method,
                str(len(found)),
                *(cells if method != baseline else ["–"] * 3),
                number(float(np.mean([c.area.mean for c in found]))),
                number(float(np.mean([abs(c.miscoverage - ALPHA) for c in found]))),
            ]
        )
    header = ["method", "problems", "significantly better", "significantly worse", "won", "area"]
    return table([*header, f"mean gap of miscoverage to {ALPHA:g}"], body)


def _pooled(chosen: Sequence[ByMethod], baseline: str) -> list[str]:
    """Differences to the baseline pooled over all problems."""
    body = []
    for method in methods_in(chosen):
        both = [runs for runs in chosen if method in runs and baseline in runs]
        if method == baseline or not both:
            continue
        own, reference = (
            [metrics.final_regrets(runs[name], INFERENCE) for runs in both]
            for name in (method, baseline)
        )
        test = statistics.pooled_test(own, reference)
        p_values = [number(test.t_p_value, 2), number(test.wilcoxon_p_value, 2)]
        body.append([method, estimate(percent(test)), *p_values])
    return table(["method", f"difference to {baseline}, %", "t-test p", "Wilcoxon p"], body)


def _problem_table(by_method: ByMethod, baseline: str) -> list[str]:
    body = []
    for method, results in by_method.items():
        found = compare(results, by_method.get(baseline, []))
        compared = method != baseline
        by_mean = [r.regret_by_mean[-1] for r in results if r.regret_by_mean is not None]
        body.append(
            [
                method,
                str(len(results)),
                estimate(found.regret),
                *paired_cells(found.versus_baseline, compared),
                number(found.fraction_won) if compared else "–",
                estimate(Estimate.of(by_mean)),
                estimate(found.area),
                *(
                    estimate(Estimate.of(list(by_seed(results, score).values())))
                    for score in SCORES.values()
                ),
                number(float(np.mean([metrics.seconds_per_evaluation(r) for r in results]))),
            ]
        )
    header = ["method", "seeds", "regret", *paired_header(baseline), "won"]
    return table([*header, "regret, posterior mean", "area", *SCORES, "s"], body)
