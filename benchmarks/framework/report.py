"""What is reported of a suite: a table as markdown and a figure, written to files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.framework.collected import Collected
from benchmarks.framework.completeness import Completeness, Selection, select
from benchmarks.framework.condensation import ArchivedResult
from benchmarks.framework.protocol import ExperimentProtocol, ProtocolError
from benchmarks.framework.result import Result
from benchmarks.framework.result_store import BENCHMARKS_DIR, ResultStore, write_atomically
from benchmarks.framework.suite import Suite

TABLES_DIR = BENCHMARKS_DIR / "tables"
FIGURES_DIR = BENCHMARKS_DIR / "figures"


def write_report(
    suite: Suite[Any, Any],
    store: ResultStore,
    tables: Path = TABLES_DIR,
    figures: Path = FIGURES_DIR,
    selection: Selection | None = None,
) -> str:
    """Write ``tables/SUITE.md`` and ``figures/SUITE.png``; return the markdown.

    Args:
        suite: The suite. If it has a protocol, its configuration must be the one stated there, and
            so must that of all results.
        store: Where its results are kept.
        tables: Folder of the table.
        figures: Folder of the figure.
        selection: What of them the report rests on, by default all of the suite's seeds that all
            methods have on all problems. Other seeds are a pilot, under the name ``SUITE_pilot``.

    Raises:
        FileNotFoundError: If there are no results.
        IncompleteError: If there are too few for what is asked for.
        ProtocolError: If the suite or a result is not what the protocol says.
        ValueError: If a method is to be left out that cannot be.
    """
    from benchmarks.framework import plots  # for which matplotlib is needed

    selection = Selection() if selection is None else selection
    selection.check(suite)
    protocol = None
    if suite.protocol is not None:
        protocol = ExperimentProtocol.load(suite.protocol)
        protocol.check(suite)
    collected, unfit = collect(suite, store, selection.seeds_of(suite))
    if protocol is not None and unfit:
        raise ProtocolError(
            f"{unfit} result files are unreadable or of another configuration than protocol "
            f"{protocol.name!r} states: run them again (--overwrite), or move them away."
        )
    if not collected:
        raise FileNotFoundError(f"There are no results of suite {suite.name!r} yet.")
    shown, completeness = select(suite, collected, selection)
    text = markdown(suite, shown, unfit, protocol, completeness)
    name = suite.name if selection.seeds is None else f"{suite.name}_pilot"
    write_atomically(tables / f"{name}.md", text)
    figures.mkdir(parents=True, exist_ok=True)
    plots.save(suite.report.figure(shown), figures / f"{name}.png")
    return text


def collect(
    suite: Suite[Any, Any], store: ResultStore, seeds: Collection[int] | None = None
) -> tuple[Collected, int]:
    """Results by problem and method, methods without any left out, and the unfit files' count."""
    collected: dict[str, dict[str, list[Result]]] = {}
    unfit = 0
    for problem in suite.problems:
        for method in suite.methods:
            results, bad = store.load(suite.name, problem, method, seeds)
            unfit += bad
            if results:
                collected.setdefault(problem.name, {})[method.name] = results
    return collected, unfit


def markdown(
    suite: Suite[Any, Any],
    collected: Collected,
    unfit: int = 0,
    protocol: ExperimentProtocol | None = None,
    completeness: Completeness | None = None,
) -> str:
    """The report of a suite as markdown.

    Args:
        suite: The suite.
        collected: Its results, as far as they are shown.
        unfit: Number of result files that were left out.
        protocol: Its protocol, if it has one.
        completeness: What they are of what there should be.
    """
    options = "" if completeness is None else completeness.selection.options()
    lines = [
        f"# Suite `{suite.name}`",
        "",
        f"Reproduce with `python -m benchmarks run {suite.name}` and then "
        f"`python -m benchmarks report {suite.name}{options}`.",
        "",
    ]
    if completeness is not None:
        lines += completeness.lines()
    if protocol is not None:
        left_out = () if completeness is None else sorted(completeness.selection.without)
        lines += [*protocol.lines(left_out), ""]
    archived = sum(isinstance(r, ArchivedResult) for runs in collected.values() for r in _all(runs))
    if archived:
        lines += [f"{archived} replicates are read from the archive, which holds them rounded.", ""]
    if unfit:
        lines += [f"{unfit} unreadable or outdated result files were left out.", ""]
    body = suite.report.lines(suite, collected)
    return "\n".join([*lines, *body, *_versions(collected), ""])


def _all(by_method: Mapping[str, Sequence[Result]]) -> Iterable[Result]:
    return chain.from_iterable(by_method.values())


def _versions(collected: Collected) -> list[str]:
    found = {
        ", ".join(f"{name} {number}" for name, number in result.versions.items())
        for by_method in collected.values()
        for results in by_method.values()
        for result in results
    }
    note = ["The results mix several versions:"] if len(found) > 1 else []
    return [*note, *sorted(found)]
