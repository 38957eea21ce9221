"""The demonstration's third part: decisions robust to a context that nobody controls.

In problem `context_shift` of suite `robust`, contexts are not drawn from the distribution that is
stated to the methods. ERBO trusts the stated distribution, and WDRBO protects against distributions
near it. Seeds and rounds were fixed before the first run; the suite has other seeds and 100 rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

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
from benchmarks.robust import methods as robust_methods
from benchmarks.robust.replicate import REFERENCE_POINTS
from benchmarks.robust.report import cumulative_regret
from benchmarks.robust.suites import ROBUST
from botorch_calib.test_functions import ContextShift

TITLE = "Robustness: decisions under a context that nobody controls"
PROBLEM = "context_shift"
ROUNDS = 30
# Number of last rounds, which show the result of a search.
LAST_ROUNDS = 10
NAMES = {"wdrbo": "WDRBO, radius 0.1", "erbo": "ERBO, which trusts the statement"}
NUM_BINS = 40


def run(budget: Budget) -> Figures:
    """Run the part, print its results and return its figure."""
    rounds = budget.rounds_of(ROUNDS)
    print(
        f"Contexts from N(0.6, 0.2²), where N(0.5, 0.1²) was stated: {budget.seeds} runs of "
        f"{rounds} rounds\n",
        flush=True,
    )
    tasks = suite_tasks(ROBUST, PROBLEM, NAMES, budget.later_seeds(), rounds)
    runs = run_all(tasks, budget.jobs, "contexts")
    print(robustness_report(runs), flush=True)
    return {"robustness.png": robustness_figure(runs)}


def late_regret(result: Result) -> float:
    """The mean regret of a round over the last rounds."""
    return float(np.mean(trace(result, "regret")[-LAST_ROUNDS:]))


def robustness_report(runs: Runs) -> str:
    """A table of expected regrets, and the paired differences."""
    rounds = max(len(trace(result, "regret")) for results in runs.values() for result in results)
    last = f"per round, last {min(LAST_ROUNDS, rounds)}"
    scores: dict[str, Score] = {"expected regret, summed": cumulative_regret, last: late_regret}
    rows = [["", *scores]]
    for method, results in runs.items():
        cells = [show([score(r) for r in results], digits=3) for score in scores.values()]
        rows.append([NAMES[method], *cells])
    own, other = runs.values()
    tests = [paired_test(by_seed(own, s), by_seed(other, s)) for s in scores.values()]
    rows.append(["difference, run by run", *(difference(test, digits=3) for test in tests)])
    return "\n".join(
        [
            *align(rows),
            "",
            "Mean ± standard error over the runs, with Wilcoxon's p-value of the difference in",
            "parentheses; lower is better, so a negative difference favours WDRBO. Regret is in",
            "expectation over the distribution from which contexts are drawn.",
        ]
    )


def robustness_figure(runs: Runs) -> Figure:
    """Regret by round, values of decisions under both distributions, and late decisions."""
    figure, (left, middle, right) = panel_grid(3, 3, (5.0, 3.8))
    colors = suite_colors(robust_methods.compared(), list(runs))
    left.set_prop_cycle(color=colors)
    for method, results in runs.items():
        curves = np.array([trace(result, "cumulative_regret") for result in results])
        draw_mean(left, NAMES[method], curves, first=1, alpha=0.15)
    left.set(xlabel="round", ylabel="cumulative expected regret", title="mean ± 1 standard error")
    left.legend(fontsize="small")
    draw_expectations(middle)
    draw_decisions(right, runs, colors)
    figure.suptitle("A context whose distribution is not the one stated", fontsize=TITLE_SIZE)
    return figure


def draw_expectations(panel: Axes) -> None:
    """Expected values of decisions under the true and the stated distribution."""
    problem = ContextShift()
    lower, upper = problem.decision_bounds.flatten().tolist()
    X = torch.linspace(lower, upper, 401, dtype=torch.double).unsqueeze(-1)
    curves = {
        "drawn from": (problem.evaluate_stochastic(X), "-"),
        "stated": (stated_expectation(problem, X), "--"),
    }
    for name, (values, style) in curves.items():
        panel.plot(X, values, style, color="black", label=f"under the distribution {name}")
        best = values >= values.max() - 1e-9
        panel.plot(X[best], values[best], "*", color="black", markersize=12)
    panel.set(xlabel="decision x", ylabel="expected value", title="stars: the best decisions")
    panel.set_ylim(bottom=-0.35)  # room for the legend
    panel.legend(fontsize="small", loc="lower center")


def stated_expectation(problem: ContextShift, X: Tensor) -> Tensor:
    """Expectations at decisions ``n x 1`` under the stated distribution, ``n``."""
    stated = problem.reference_distribution(REFERENCE_POINTS)
    shape = len(X), stated.num_points, 1
    joint = torch.cat([X.unsqueeze(1).expand(shape), stated.points.expand(shape)], dim=-1)
    return stated.expectation(problem(joint))


def draw_decisions(panel: Axes, runs: Runs, colors: Sequence[str]) -> None:
    """Histogram of the decisions of all runs in the last rounds."""
    bins = np.linspace(-1.0, 1.0, NUM_BINS + 1).tolist()
    for (method, results), color in zip(runs.items(), colors, strict=True):
        made = np.concatenate([last_decisions(result) for result in results])
        weights = np.full(len(made), 1.0 / len(made))
        label = NAMES[method].partition(",")[0]
        panel.hist(made, bins, weights=weights, color=color, alpha=0.5, label=label)
    panel.set(xlabel="decision x", ylabel="share of decisions")
    panel.set_title(f"decisions of the last {LAST_ROUNDS} rounds")
    panel.legend(fontsize="small")


def last_decisions(result: Result) -> np.ndarray:
    """The decisions of the last rounds, without initial decisions."""
    return np.array(result.X)[result.num_initial :, 0][-LAST_ROUNDS:]
