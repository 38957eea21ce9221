"""The demonstration's second part: decisions while earlier evaluations are still running.

Objectives are draws of a Gaussian process, as in suite `delay`; values arrive ten queries late on
average. The package's rule, GP-UCB-SDF, is compared with a UCB that ignores running evaluations, a
UCB that hallucinates them, and BoTorch's pending points. Seeds and rounds were fixed before the
first run; the suite has other seeds and 100 rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from benchmarks.delay import methods as delay_methods
from benchmarks.delay.report import cumulative_regret_all, mean_simple_regret, style_of
from benchmarks.delay.suites import DELAY
from benchmarks.demo.common import (
    TITLE_SIZE,
    Budget,
    Figures,
    Runs,
    align,
    difference,
    run_all,
    show,
    suite_colors,
    suite_tasks,
)
from benchmarks.framework.metrics import trace
from benchmarks.framework.plots import draw_mean, panel_grid
from benchmarks.framework.replicate_result import Result, Score, by_seed
from benchmarks.framework.statistics import paired_test

TITLE = "Delays: good decisions while evaluations are running"
PROBLEM = "gp_sample_poisson"
ROUNDS = 40
OWN = "ucb_sdf"
NAMES = {
    OWN: "GP-UCB-SDF",
    "ucb": "UCB, ignoring delays",
    "ucb_hallucinate": "GP-BUCB, hallucinating",
    "qlogei_pending": "qLogEI with X_pending",
}
# Scores with their numbers of decimals. The objective ranges from 0 to 1.
SCORES: tuple[tuple[str, Score, int], ...] = (
    ("simple regret", mean_simple_regret, 3),
    ("sum of regrets", cumulative_regret_all, 1),
)


def run(budget: Budget) -> Figures:
    """Run the part, print its results and return its figure."""
    rounds = budget.rounds_of(ROUNDS)
    print(
        f"Functions with about fourteen maxima: {budget.seeds} runs of {rounds} queries, whose "
        "values arrive\n10 queries late on average (Poisson)\n",
        flush=True,
    )
    tasks = suite_tasks(DELAY, PROBLEM, NAMES, budget.later_seeds(), rounds)
    runs = run_all(tasks, budget.jobs, "late values")
    print(delay_report(runs), flush=True)
    return {"delays.png": delay_figure(runs)}


def delay_report(runs: Runs) -> str:
    """A table of both regrets, and of paired differences between the package's rule and others."""
    rows = [["", *(cell for name, _, _ in SCORES for cell in (name, "SDF minus it"))]]
    for method, results in runs.items():
        cells = [NAMES[method]]
        for _, score, digits in SCORES:
            cells.append(show([score(result) for result in results], digits=digits))
            cells.append("" if method == OWN else _own_minus(runs, results, score, digits))
        rows.append(cells)
    return "\n".join(
        [
            *align(rows),
            "",
            "Mean ± standard error over the runs; lower is better, so negative differences favour",
            "GP-UCB-SDF. They are run by run, with Wilcoxon's p-values in parentheses. Simple",
            "regret is that of the best query whose value has arrived, averaged over time. The sum",
            "is over all queries: where every one counts, exploring costs.",
        ]
    )


def _own_minus(runs: Runs, others: Sequence[Result], score: Score, digits: int) -> str:
    test = paired_test(by_seed(runs[OWN], score), by_seed(others, score))
    return difference(test, digits)


def delay_figure(runs: Runs) -> Figure:
    """Both regrets by round, with bands of one standard error."""
    figure, panels = panel_grid(2, 2, (5.5, 4.0))
    colors = suite_colors(delay_methods.compared(), list(runs))
    traces = {
        "simple_regret": "simple regret, arrived",
        "cumulative_regret_all": "cumulative regret, all",
    }
    for panel, (name, label) in zip(panels, traces.items(), strict=True):
        panel.set_prop_cycle(color=colors)
        for method, results in runs.items():
            curves = np.array([trace(result, name) for result in results])
            draw_mean(panel, NAMES[method], curves, style_of(method), alpha=0.15)
        panel.set(xlabel="round", ylabel=label)
    figure.legend(handles=panels[0].get_lines(), loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(
        "Values ten queries late on average: mean ± 1 standard error", fontsize=TITLE_SIZE
    )
    return figure
