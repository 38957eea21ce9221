"""Run the replicates of a suite in parallel, resuming where an earlier run stopped.

The parent process writes every result when it arrives. Workers therefore need no shared file
system, and an interrupted run loses only the replicates that were running.
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
    """Raised if stored results have another configuration than the suite."""


@dataclass(frozen=True)
class Task:
    """One replicate to be run by the suite's function ``replicate``."""

    problem: Named
    method: Named
    seed: int
    replicate: Callable[[Any, Any, int], Result] = replicate

    def __str__(self) -> str:
        return f"{self.problem.name}/{self.method.name}/seed {self.seed}"


@dataclass(frozen=True)
class Failure:
    """A replicate that raised an exception."""

    task: str
    error: str


@dataclass
class Summary:
    """The numbers of finished and skipped replicates of a run, and its failures."""

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
    """Run the replicates of a suite that have no results yet.

    Args:
        suite: The suite.
        store: The files to which results are added.
        seeds: The seeds (default: the seeds of the suite).
        jobs: Number of worker processes.
        overwrite: Whether to run replicates again if their results have another configuration,
            instead of raising ``StaleResultsError``.
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
    """The replicates still to be run, ordered by seed, and the number of finished replicates."""
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
    """Hide warnings that are expected in experiments; a failed fit still raises an exception."""
    with warnings.catch_warnings():
        # With few points, fits are often repeated, and jitter is added to the diagonal.
        for category in (BotorchWarning, NumericalWarning):
            warnings.simplefilter("ignore", category)
        # Line searches stop at a kink, or where values differ by rounding only.
        warnings.filterwarnings("ignore", "Optimization failed", RuntimeWarning)
        yield


@contextmanager
def one_torch_thread() -> Generator[None, None, None]:
    """Use one thread, as replicates run in parallel and more threads would only compete."""
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
        # If a worker is killed, for example when memory is exhausted, its pool breaks. Results that
        # have been written remain, and the next run continues.
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
    """Print the numbers of replicates of a run, then its failures."""
    failed = len(summary.failures)
    print(f"{summary.finished} run, {summary.skipped} finished before, {failed} failed")
    for failure in summary.failures:
        print(f"\nFAILED {failure.task}\n{failure.error}", file=sys.stderr)
