"""Helpers for all parts of the demonstration: budgets, runs with a progress bar, text tables."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import joblib
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from tqdm.auto import tqdm

from benchmarks.framework.plots import method_colors
from benchmarks.framework.replicate_result import Named, Result
from benchmarks.framework.runner import Failure, Task, run_task
from benchmarks.framework.statistics import Estimate, PairedTest
from benchmarks.framework.suite import Suite

TITLE_SIZE = 14
# The first seed of all parts except coverage. These seeds differ from the seeds of suites and from
# the seeds on which settings were tuned.
FIRST_SEED = 2000

Runs = Mapping[str, Sequence[Result]]
Figures = dict[str, Figure]


@dataclass(frozen=True)
class Budget:
    """How much to run.

    Args:
        seeds: Number of repetitions of each method.
        iterations: Number of evaluations of each run in the part on coverage.
        rounds: Largest number of rounds in the other parts; ``None`` for their defaults.
        jobs: Number of processes.
    """

    seeds: int = 6
    iterations: int = 25
    rounds: int | None = None
    jobs: int = 2

    def rounds_of(self, planned: int) -> int:
        """The number of rounds of a part whose default is ``planned``."""
        return planned if self.rounds is None else min(planned, self.rounds)

    def later_seeds(self) -> range:
        """The seeds of all parts except coverage."""
        return range(FIRST_SEED, FIRST_SEED + self.seeds)


def suite_tasks(
    suite: Suite[Any, Any],
    problem: str,
    methods: Collection[str],
    seeds: Iterable[int],
    rounds: int,
) -> list[Task]:
    """Tasks with some methods of a suite on one of its problems, with ``rounds`` rounds."""
    (task,) = (task for task in suite.problems if task.name == problem)
    known = {method.name: method for method in suite.methods}
    shortened = replace(task, num_rounds=rounds)
    return [
        Task(shortened, known[name], seed, suite.replicate) for seed in seeds for name in methods
    ]


def run_all(tasks: Sequence[Task], jobs: int, label: str) -> Runs:
    """Run replicates in parallel with a progress bar; return results by method in task order.

    Raises:
        RuntimeError: If a replicate fails.
    """
    runs: dict[str, list[Result]] = {task.method.name: [] for task in tasks}
    with joblib.parallel_config(backend="loky", n_jobs=jobs, inner_max_num_threads=1):
        parallel = joblib.Parallel(return_as="generator", batch_size=1)
        outcomes = parallel(joblib.delayed(run_task)(task) for task in tasks)
        for outcome in tqdm(outcomes, total=len(tasks), desc=label):
            if isinstance(outcome, Failure):
                raise RuntimeError(f"{outcome.task} failed.\n{outcome.error}")
            runs[outcome.method].append(outcome)
    return runs


def suite_colors(methods: Sequence[Named], chosen: Sequence[str]) -> list[str]:
    """The colours of the chosen methods in the figure of the suite with all ``methods``."""
    colors = method_colors(method.name for method in methods)
    return [to_hex(colors[name]) for name in chosen]


def show(values: Sequence[float], percent: bool = False, digits: int = 2) -> str:
    """Mean ± standard error."""
    if percent:
        return f"{plus_minus(Estimate.of([100.0 * value for value in values]), digits=1)} %"
    return plus_minus(Estimate.of(values), digits)


def plus_minus(estimate: Estimate, digits: int = 2) -> str:
    """Mean ± standard error; the error of a single value is ``?``."""
    error = estimate.standard_error
    unknown = "?" if math.isnan(error) else f"{error:.{digits}f}"
    return f"{estimate.mean:.{digits}f} ± {unknown}"


def difference(test: PairedTest, digits: int = 2) -> str:
    """A paired difference with its standard error and Wilcoxon's p-value."""
    p_value = "?" if math.isnan(test.wilcoxon_p_value) else f"{test.wilcoxon_p_value:.2f}"
    return f"{plus_minus(test.difference, digits)} ({p_value})"


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
