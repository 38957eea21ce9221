"""The demonstration, ``python -m benchmarks.demo``: under three minutes on two cores.

It tunes a real model with a calibrated loop, runs plain and calibrated Bayesian optimization
side by side under heteroscedastic noise, checks the coverage of prediction intervals on a
problem in one dimension, prints what came out with its uncertainty, and draws pictures.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import joblib
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import torch
from botorch.exceptions.warnings import BotorchWarning
from linear_operator.utils.warnings import NumericalWarning
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from benchmarks import interval_study, methods, problems, stateful, svc
from benchmarks.core import Result
from benchmarks.report import Estimate, paired_test
from benchmarks.runner import Failure, Task, one_torch_thread, parallel_backend, run_task
from botorch_calib.plotting import plot_regret, plot_reliability, plot_threshold_map

NAMES = {"bo": "BO with LogEI", "locbo_stateful": "LOCBO"}
LEVELS = np.linspace(0.05, 0.95, 19)
TITLE_SIZE = 14

Runs = Mapping[str, Sequence[Result]]


def build_parser() -> argparse.ArgumentParser:
    """The command-line parser."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__)
    parser.add_argument("--seeds", type=int, default=6, help="repetitions of each method")
    parser.add_argument("--iterations", type=int, default=25, help="evaluations of each run")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), metavar="FOLDER")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the demonstration and return its exit status."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if min(args.seeds, args.iterations, args.jobs) < 1:
        parser.error("--seeds, --iterations and --jobs must be at least 1")
    matplotlib.use("Agg")
    start = time.perf_counter()
    with one_torch_thread(), warnings.catch_warnings():
        # Refits and jitter are expected with few points; a fit that fails still raises.
        for category in (BotorchWarning, NumericalWarning):
            warnings.simplefilter("ignore", category)
        run_demo(args.seeds, args.iterations, args.jobs, args.output)
    print(f"\nfinished in {time.perf_counter() - start:.0f} s")
    return 0


def run_demo(seeds: int, iterations: int, jobs: int, output: Path) -> None:
    """Run all parts, print their results and write the pictures into ``output``."""
    print("1. Tune a support vector classifier on scikit-learn's digits\n", flush=True)
    print(svc.tuning_report(svc.tune(min(iterations, 20))), flush=True)
    print(f"\n2. Ackley with noise that grows outwards: {seeds} runs of {iterations} evaluations")
    print(flush=True)
    runs = run_ackley(seeds, iterations, jobs)
    print(ackley_report(runs), flush=True)
    print("\n3. Intervals of observations, x sin 2x + cos(pi x) with noise variance (|x|+1)/10\n")
    # The calibrator's steps were chosen on data sets 0 to 11, so others are judged here.
    coverage = interval_study.coverage_study(range(100, 100 + 2 * seeds))
    print(interval_study.coverage_report(coverage), flush=True)
    figures = {
        "regret.png": regret_figure(runs),
        "reliability.png": reliability_figure(runs),
        "intervals.png": interval_study.intervals_figure(),
        "threshold_map.png": threshold_figure(runs["locbo_stateful"][0]),
    }
    output.mkdir(parents=True, exist_ok=True)
    print("\n4. Pictures\n")
    for name, figure in figures.items():
        figure.savefig(output / name, dpi=150)
        plt.close(figure)
        print(output / name)


def run_ackley(seeds: int, iterations: int, jobs: int) -> Runs:
    """Plain and calibrated Bayesian optimization with the same initial points and noise."""
    problem = problems.heteroscedastic_ackley(iterations)
    tasks = [
        Task(problem, method, seed)
        for seed in range(seeds)
        for method in (methods.plain_bo(), stateful.locbo_stateful())
    ]
    runs: dict[str, list[Result]] = {name: [] for name in NAMES}
    with parallel_backend("loky", jobs, None):
        parallel = joblib.Parallel(return_as="generator", batch_size=1)
        outcomes = parallel(joblib.delayed(run_task)(task) for task in tasks)
        for outcome in tqdm(outcomes, total=len(tasks), desc="BO and LOCBO"):
            if isinstance(outcome, Failure):
                raise RuntimeError(f"{outcome.task} failed.\n{outcome.error}")
            runs[outcome.method].append(outcome)
    return runs


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
    test = paired_test(locbo, bo)
    p_value = "" if math.isnan(test.t_p_value) else f"t-test p = {test.t_p_value:.2f}; "
    return (
        f"Regret of LOCBO minus that of BO, run by run: {plus_minus(test.difference)} "
        f"({p_value}negative favours LOCBO)."
    )


def extras(results: Sequence[Result], name: str) -> list[np.ndarray]:
    """A recorded series of each run."""
    return [np.array(result.extras[name], dtype=float) for result in results]


def show(values: Sequence[float], percent: bool = False) -> str:
    """Mean ± standard error."""
    if percent:
        return f"{plus_minus(Estimate.of([100.0 * value for value in values]), digits=1)} %"
    return plus_minus(Estimate.of(values))


def plus_minus(estimate: Estimate, digits: int = 2) -> str:
    """Mean ± standard error, which a single value does not have."""
    error = estimate.standard_error
    unknown = "?" if math.isnan(error) else f"{error:.{digits}f}"
    return f"{estimate.mean:.{digits}f} ± {unknown}"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]


def central_coverage(results: Sequence[Result], levels: np.ndarray) -> np.ndarray:
    """Observed frequency of each central interval, from the recorded PITs, all runs pooled."""
    pits = np.concatenate(extras(results, "pit"))
    return np.asarray((np.abs(2.0 * pits - 1.0)[:, None] <= levels).mean(axis=0))


def regret_figure(runs: Runs) -> Figure:
    """Regret curves of both methods."""
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


def threshold_figure(result: Result) -> Figure:
    """Half-widths learned in one run of LOCBO on Ackley."""
    problem = problems.heteroscedastic_ackley(len(result.X) - result.num_initial)
    X = torch.tensor(result.X, dtype=torch.double)
    Y = torch.tensor(result.y, dtype=torch.double).unsqueeze(-1)
    model = stateful.final_model(problem, X, Y, result.seed)
    ax = plot_threshold_map(model, problem.bounds_tensor(), X)
    return titled(ax, f"LOCBO after {len(X)} evaluations")


def titled(ax: Axes, title: str) -> Figure:
    """The figure of ``ax`` with a title above everything else."""
    figure = ax.figure
    assert isinstance(figure, Figure)
    figure.suptitle(title, fontsize=TITLE_SIZE)
    return figure


if __name__ == "__main__":
    sys.exit(main())
