"""Write the report of a suite: a table in markdown and a figure.

While a suite runs, methods may have results with different seeds, so that their means cannot be
compared. A report uses only the seeds with which all methods shown have been run on all problems.
Replicates that the protocol names as missing count as run, and comparisons leave their seeds out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.framework import plots
from benchmarks.framework.markdown import table
from benchmarks.framework.protocol import ExperimentProtocol, ProtocolError
from benchmarks.framework.replicate_result import Collected, Run
from benchmarks.framework.stored_results import BENCHMARKS_DIR, ResultStore, write_atomically
from benchmarks.framework.suite import Suite

TABLES_DIR = BENCHMARKS_DIR / "tables"
FIGURES_DIR = BENCHMARKS_DIR / "figures"


@dataclass(frozen=True)
class Selection:
    """The results that a report uses.

    Args:
        seeds: The seeds of a pilot (default: the seeds of the suite).
        without: Names of methods that are left out, since they have not been run.
    """

    seeds: Collection[int] | None = None
    without: Collection[str] = ()

    def check(self, suite: Suite[Any, Any]) -> None:
        """Raise `ValueError` if ``without`` has an unknown name or the name of the baseline."""
        names = [method.name for method in suite.methods if method.name != suite.baseline]
        unknown = sorted(set(self.without) - set(names))
        if unknown:
            raise ValueError(f"Cannot leave out {unknown}, only methods among {names}.")

    def options(self) -> str:
        """The command-line options of this selection, with a space before each of them."""
        parts = ["--without", *sorted(self.without)] if self.without else []
        if self.seeds is not None:
            parts += ["--seeds", ",".join(map(str, sorted(self.seeds)))]
        return "".join(f" {part}" for part in parts)


def write_report(
    suite: Suite[Any, Any],
    store: ResultStore,
    tables: Path = TABLES_DIR,
    figures: Path = FIGURES_DIR,
    selection: Selection = Selection(),  # noqa: B008 - frozen
) -> str:
    """Write ``tables/SUITE.md`` and ``figures/SUITE.png``; return the markdown.

    Args:
        suite: The suite. If it has a protocol, the suite and all results must have the
            configuration that the protocol states.
        store: The files of its results.
        tables: Folder of the table.
        figures: Folder of the figure.
        selection: The results that the report uses (default: all seeds of the suite). A report of
            other seeds is a pilot, with the name ``SUITE_pilot``.

    Raises:
        FileNotFoundError: If there are no results.
        ProtocolError: If the suite or a result does not agree with the protocol.
        ValueError: If the selection is invalid, or if no seed has been run with all methods on all
            problems.
    """
    selection.check(suite)
    protocol = None
    if suite.protocol is not None:
        protocol = ExperimentProtocol.load(suite.protocol)
        protocol.check(suite)
    seeds = suite.seeds if selection.seeds is None else selection.seeds
    collected, unfit = store.collect(suite, seeds)
    if protocol is not None and unfit:
        raise ProtocolError(
            f"{unfit} results have another configuration than protocol {protocol.name!r} states: "
            "run them again (--overwrite), or move them away."
        )
    if not collected:
        raise FileNotFoundError(f"There are no results of suite {suite.name!r} yet.")
    missing = {} if protocol is None else protocol.missing()
    shown, statement = select(suite, collected, selection, missing)
    lines = [
        f"# Suite `{suite.name}`",
        "",
        f"Reproduce with `python -m benchmarks run {suite.name}` and then "
        f"`python -m benchmarks report {suite.name}{selection.options()}`.",
        "",
        *statement,
    ]
    if protocol is not None:
        lines += [*protocol.lines(sorted(selection.without)), ""]
    if unfit:
        lines += [f"{unfit} outdated results were left out.", ""]
    text = "\n".join([*lines, *suite.report.lines(suite, shown), *_versions(shown), ""])
    name = suite.name if selection.seeds is None else f"{suite.name}_pilot"
    write_atomically(tables / f"{name}.md", text)
    figures.mkdir(parents=True, exist_ok=True)
    plots.save(suite.report.figure(shown), figures / f"{name}.png")
    return text


def select(
    suite: Suite[Any, Any],
    collected: Collected,
    selection: Selection,
    missing: Mapping[Run, Collection[int]],
) -> tuple[Collected, list[str]]:
    """Return the results that a report shows, and its statement in markdown of what is missing."""
    seeds = frozenset(suite.seeds if selection.seeds is None else selection.seeds)
    runs = [
        Run(problem.name, method.name) for method in suite.methods for problem in suite.problems
    ]
    found = {
        run: {result.seed for result in collected.get(run.problem, {}).get(run.method, [])} & seeds
        for run in runs
    }
    failed = {run: seeds.intersection(missing.get(run, ())) - found[run] for run in runs}
    methods = [method.name for method in suite.methods]
    complete = {
        name: set.intersection(*(found[run] | failed[run] for run in runs if run.method == name))
        for name in methods
    }
    there = {name: sum(len(found[run]) for run in runs if run.method == name) for name in methods}
    shown = [method for method in methods if method not in selection.without]
    used = set.intersection(*(complete[method] for method in shown))
    if not used:
        counts = ", ".join(f"{method} {len(complete[method])}" for method in shown)
        raise ValueError(
            f"No seed of suite {suite.name!r} has been run with all methods on all problems "
            f"(numbers of seeds on all problems: {counts}). Leave methods out with --without."
        )
    kept = {
        problem: {
            method: [result for result in by_method.get(method, []) if result.seed in used]
            for method in shown
        }
        for problem, by_method in collected.items()
    }
    asked = len(seeds) * len(suite.problems)
    num_failed, num_left = sum(map(len, failed.values())), asked * len(there) - sum(there.values())
    lines = _statement(selection, asked, there, num_failed)
    if num_left > 0:
        rows = [
            [method, f"{number} of {asked}", str(len(complete[method]))]
            for method, number in there.items()
        ]
        lines += [*table(["method", "replicates", "seeds on all problems"], rows), ""]
    if num_left > num_failed:
        num_kept = sum(
            len(results) for by_method in kept.values() for results in by_method.values()
        )
        unused = sum(there[method] for method in shown) - num_kept
        lines += [
            f"Seeds used: {listed(used)}, {len(used)} in all: those with which all methods shown "
            f"have been run on all problems. {unused} further replicates of these methods are not "
            "used.",
            "",
        ]
    return kept, lines


def _statement(
    selection: Selection, asked: int, there: Mapping[str, int], num_failed: int
) -> list[str]:
    """Lines that state how many of the requested replicates have been run."""
    total, run = asked * len(there), sum(there.values())
    text = f"{run} of {total} replicates have been run."
    if num_failed:
        text += (
            f" {num_failed} raised an error each time and are missing: comparisons leave out their "
            "seeds. The deviations name them."
        )
    interim = f"**Incomplete: {text}** This is an interim look, and what follows may change."
    lines = [text if run + num_failed == total else interim, ""]
    if selection.seeds is not None:
        lines = [f"**A pilot on the seeds {listed(selection.seeds)}, no evidence.**", "", *lines]
    for method in sorted(selection.without):
        lines += [
            f"**Deviation: `{method}` is left out**; {there[method]} of its {asked} replicates "
            "have been run. Comparisons with it are missing, but the correction for the number of "
            "comparisons counts them.",
            "",
        ]
    return lines


def listed(seeds: Collection[int]) -> str:
    """Seeds as text, with three or more consecutive seeds as ``first to last``."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    parts = [f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return ", ".join(parts)


def _versions(collected: Collected) -> list[str]:
    found = {
        ", ".join(f"{name} {number}" for name, number in result.versions.items())
        for by_method in collected.values()
        for results in by_method.values()
        for result in results
    }
    note = ["The results mix several versions:"] if len(found) > 1 else []
    return [*note, *sorted(found)]
