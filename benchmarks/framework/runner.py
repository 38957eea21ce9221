"""Run the replicates of a suite in parallel, resuming where an earlier run stopped.

The parent process writes every result as it arrives, so workers need no shared file
system and an interrupted run loses only the replicates that were in flight.
"""

from __future__ import annotations

import argparse
import sys
import traceback
import warnings
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import joblib
import torch
from botorch.exceptions.warnings import BotorchWarning
from linear_operator.utils.warnings import NumericalWarning
from tqdm.auto import tqdm

from benchmarks.framework.replicate_result import Named, Result
from benchmarks.framework.sequential import replicate
from benchmarks.framework.stored_results import ReplicateKey, ResultStore
from benchmarks.framework.suite import Suite


class StaleResultsError(RuntimeError):
    """Results are there of another configuration."""


@dataclass(frozen=True)
class Task:
    """One replicate to be run, by the suite's function."""

    problem: Named
    method: Named
    seed: int
    replicate: Callable[[Any, Any, int], Result] = replicate

    def __str__(self) -> str:
        return f"{self.problem.name}/{self.method.name}/seed {self.seed}"


@dataclass(frozen=True)
class Failure:
    """A replicate that raised."""

    task: str
    error: str


@dataclass
class Summary:
    """What a run did."""

    finished: int = 0
    skipped: int = 0
    failures: list[Failure] = field(default_factory=list)


def run_suite(
    suite: Suite[Any, Any],
    store: ResultStore,
    seeds: Iterable[int] | None = None,
    *,
    jobs: int = 1,
    overwrite: bool = False,
    progress: bool = True,
) -> Summary:
    """Run what is missing of a suite.

    Args:
        suite: The suite.
        store: Where results are kept.
        seeds: The seeds; by default the suite's.
        jobs: Worker processes.
        overwrite: Run again what is of another configuration, instead of raising
            ``StaleResultsError``. Finished results are skipped in any case.
        progress: Whether to show a progress bar.
    """
    tasks, skipped = pending_tasks(suite, store, seeds, overwrite=overwrite)
    summary = Summary(skipped=skipped)
    if not tasks:
        return summary
    with joblib.parallel_config(backend="loky", n_jobs=jobs, inner_max_num_threads=1):
        parallel = joblib.Parallel(return_as="generator_unordered", batch_size=1)
        outcomes = parallel(joblib.delayed(run_task)(task) for task in tasks)
        bar = tqdm(outcomes, total=len(tasks), desc=suite.name, disable=not progress)
        _collect(bar, suite, store, summary)
    return summary


def pending_tasks(
    suite: Suite[Any, Any], store: ResultStore, seeds: Iterable[int] | None, *, overwrite: bool
) -> tuple[list[Task], int]:
    """The replicates still to be run, all methods of a seed together, and how many are done."""
    entries, current = store.entries(suite), suite.config_hashes()
    tasks: list[Task] = []
    stale: list[str] = []
    skipped = 0
    for seed in suite.seeds if seeds is None else seeds:
        for problem in suite.problems:
            for method in suite.methods:
                task = Task(problem, method, seed, suite.replicate)
                entry = entries.get(ReplicateKey(problem.name, method.name, seed))
                if entry is None:
                    tasks.append(task)
                elif entry.group.config_hash == current[problem.name, method.name]:
                    skipped += 1
                else:
                    tasks.append(task)
                    stale.append(str(task))
    if stale and not overwrite:
        raise StaleResultsError(_stale_message(stale))
    return tasks, skipped


def run_task(task: Task) -> Result | Failure:
    """Run one replicate on one thread; an exception becomes a ``Failure``."""
    with one_torch_thread(), without_expected_warnings():
        try:
            return task.replicate(task.problem, task.method, task.seed)
        except Exception:
            return Failure(str(task), traceback.format_exc())


@contextmanager
def without_expected_warnings() -> Generator[None, None, None]:
    """Hide what experiments warn of as a matter of course; a fit that fails still raises."""
    with warnings.catch_warnings():
        # Refits, and jitter, with few points.
        for category in (BotorchWarning, NumericalWarning):
            warnings.simplefilter("ignore", category)
        # Line searches that stop at a kink, or where values are equal to rounding.
        warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
        yield


@contextmanager
def one_torch_thread() -> Generator[None, None, None]:
    """Use one thread: replicates run side by side, and more would only compete."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _collect(
    outcomes: Iterable[Result | Failure],
    suite: Suite[Any, Any],
    store: ResultStore,
    summary: Summary,
) -> None:
    try:
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                summary.failures.append(outcome)
            else:
                store.add(suite, outcome)
                summary.finished += 1
    except joblib.externals.loky.process_executor.TerminatedWorkerError:
        # A killed worker (out of memory, say) takes the pool with it. What is written
        # stays, and the next run resumes from there.
        summary.failures.append(Failure("a worker process", traceback.format_exc()))


def _stale_message(stale: Sequence[str]) -> str:
    shown = "\n  ".join(stale[:10])
    more = f"\n  and {len(stale) - 10} more" if len(stale) > 10 else ""
    return (
        f"{len(stale)} results are of another configuration:\n  {shown}{more}\n"
        "Pass --overwrite to run these again, or move them away."
    )


def parse_seeds(text: str) -> list[int]:
    """Read ``"0:30"`` (end excluded), ``"7"`` or ``"0,3,10:12"``."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, colon, last = part.partition(":")
            seeds += range(int(first), int(last)) if colon else [int(first)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"Not a list of seeds: {text!r}.") from None
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise argparse.ArgumentTypeError(f"Seeds must be distinct and at least 0: {text!r}.")
    return seeds


def print_summary(summary: Summary) -> None:
    """Say what a run did, failures last."""
    failed = len(summary.failures)
    print(f"{summary.finished} run, {summary.skipped} finished before, {failed} failed")
    for failure in summary.failures:
        print(f"\nFAILED {failure.task}\n{failure.error}", file=sys.stderr)
