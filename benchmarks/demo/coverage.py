"""The demonstration's first part: posteriors whose stated coverage is true.

It runs plain and calibrated Bayesian optimization side by side under heteroscedastic noise, and
checks the coverage of prediction intervals on a problem in one dimension.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.calibration import ackley, stateful
from benchmarks.demo import interval_study
from benchmarks.demo.common import (
    TITLE_SIZE,
    Budget,
    Figures,
    Runs,
    align,
    difference,
    run_all,
    show,
)
from benchmarks.framework.replicate_result import Result
from benchmarks.framework.runner import Task
from benchmarks.framework.sequential import Method, Problem
from benchmarks.framework.statistics import paired_test
from benchmarks.framework.strategies import AcquisitionStrategy
from benchmarks.framework.surrogates import Refitted
from botorch_calib.plotting import plot_regret, plot_reliability

TITLE = "Coverage: posteriors whose stated coverage is true"
NAMES = {"bo": "BO with LogEI", "locbo_stateful": "LOCBO"}
LEVELS = np.linspace(0.05, 0.95, 19)


def run(budget: Budget) -> Figures:
    """Run the part, print its results and return its figures."""
    seeds, iterations = budget.seeds, budget.iterations
    print(f"Ackley with noise that grows outwards: {seeds} runs of {iterations} evaluations\n")
    runs = run_ackley(seeds, iterations, budget.jobs)
    print(ackley_report(runs), flush=True)
    print("\nIntervals of observations, x sin 2x + cos(pi x) with noise variance (|x|+1)/10\n")
    # The calibrator's steps were tuned on data sets 0 to 11, so other data sets are used here.
    coverage = interval_study.coverage_study(range(100, 100 + 2 * seeds))
    print(interval_study.coverage_report(coverage), flush=True)
    return {
        "regret.png": regret_figure(runs),
        "reliability.png": reliability_figure(runs),
        "intervals.png": interval_study.intervals_figure(),
    }


def run_ackley(seeds: int, iterations: int, jobs: int) -> Runs:
    """Plain and calibrated Bayesian optimization with the same initial points and noise."""
    tasks = [
        Task(ackley_problem(iterations), method, seed)
        for seed in range(seeds)
        for method in (Method("bo", AcquisitionStrategy), stateful.locbo_stateful())
    ]
    return run_all(tasks, jobs, "BO and LOCBO")


def ackley_problem(iterations: int) -> Problem:
    """The suite's problem with fewer fits, which would take most of the time."""
    surrogate = Refitted(every=3, at_first=5)
    return replace(ackley.heteroscedastic_ackley(iterations), surrogate=surrogate)


def ackley_report(runs: Runs) -> str:
    """A table of final regrets and miscoverage, and the paired difference of regrets."""
    head = ["", "final regret", "misses of 80 % intervals", "interval length"]
    rows = [head]
    for name, results in runs.items():
        misses = [1.0 - np.mean(covered) for covered in extras(results, "covered")]
        lengths = [np.mean(width) for width in extras(results, "width")]
        regrets = [result.regret_by_outcome[-1] for result in results]
        cells = [show(regrets), show(misses, percent=True), show(lengths)]
        rows.append([NAMES[name], *cells])
    return "\n".join(
        [
            *align(rows),
            "",
            "Mean ± standard error over the runs; the intervals ought to miss 20 %.",
            paired_report(runs),
            "LOCBO calibrates the 80 % interval alone: see reliability.png for other levels.",
        ]
    )


def paired_report(runs: Runs) -> str:
    """The difference of final regrets between runs from the same initial points."""
    bo, locbo = ({run.seed: run.regret_by_outcome[-1] for run in runs[name]} for name in NAMES)
    return (
        f"Regret of LOCBO minus that of BO, run by run: {difference(paired_test(locbo, bo))},\n"
        "with Wilcoxon's p-value; negative favours LOCBO."
    )


def extras(results: Sequence[Result], name: str) -> list[np.ndarray]:
    """An extra of each run as an array."""
    return [np.array(result.extras[name], dtype=float) for result in results]


def central_coverage(results: Sequence[Result], levels: np.ndarray) -> np.ndarray:
    """Observed coverage of central intervals, from the recorded PITs of all runs."""
    pits = np.concatenate(extras(results, "pit"))
    return np.asarray((np.abs(2.0 * pits - 1.0)[:, None] <= levels).mean(axis=0))


def regret_figure(runs: Runs) -> Figure:
    """Regret curves of both strategies."""
    curves = {NAMES[m]: [r.regret_by_outcome for r in results] for m, results in runs.items()}
    return titled(plot_regret(curves), "Heteroscedastic Ackley")


def reliability_figure(runs: Runs) -> Figure:
    """Reliability of the intervals that both methods stated before each evaluation."""
    observed = {NAMES[m]: central_coverage(results, LEVELS) for m, results in runs.items()}
    count = sum(map(len, extras(runs["bo"], "pit")))
    ax = plot_reliability(LEVELS, observed, count)
    ax.axvline(0.8, color="0.4", linestyle=":")
    ax.text(0.79, 0.02, "level that LOCBO calibrates", fontsize=11, rotation=90, ha="right")
    return titled(ax, "Intervals stated before each evaluation")


def titled(ax: Axes, title: str) -> Figure:
    """The figure of ``ax`` with a title at the top."""
    figure = ax.figure
    assert isinstance(figure, Figure)
    figure.suptitle(title, fontsize=TITLE_SIZE)
    return figure
