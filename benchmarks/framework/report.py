"""What is reported of a suite: a table as markdown and a figure, written to files."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from benchmarks.framework.completeness import Collected, Completeness, Selection, select
from benchmarks.framework.condensation import ArchivedResult
from benchmarks.framework.markdown import estimate, number, table
from benchmarks.framework.metrics import Estimate, PairedTest, final_regrets, paired_test
from benchmarks.framework.protocol import ExperimentProtocol, ProtocolError
from benchmarks.framework.result import Result
from benchmarks.framework.result_store import BENCHMARKS_DIR, ResultStore, write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from benchmarks.framework.suite import Suite

TABLES_DIR = BENCHMARKS_DIR / "tables"
FIGURES_DIR = BENCHMARKS_DIR / "figures"


class Report(Protocol):
    """How a suite presents its results."""

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """The lines of the report between its title and the versions, as markdown."""

    def figure(self, collected: Collected) -> Figure:
        """The figure that goes with it."""


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
    suite.report.figure(shown).savefig(figures / f"{name}.png", dpi=150)
    return text


def collect(
    suite: Suite[Any, Any], store: ResultStore, seeds: Collection[int] | None = None
) -> tuple[Collected, int]:
    """Results by problem and method, methods without any left out, and the unfit files' count."""
    collected: Collected = {}
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


@dataclass(frozen=True)
class RegretReport:
    """Simple regret, coverage and times: what suites report that do not say otherwise."""

    def lines(self, suite: Suite[Any, Any], collected: Collected) -> list[str]:
        """A legend, and one table for each problem."""
        lines = [
            "Final simple regret f(x*) - f(x), at the point with the largest outcome and at the "
            "one with the largest posterior mean: mean ± standard error over seeds, lower is "
            f"better. Differences are paired by seed with `{suite.baseline}`; p-values are "
            "two-sided. Coverage is that of the interval stated before each outcome; times are "
            "per evaluation.",
            "",
        ]
        for problem, by_method in collected.items():
            baseline = by_method.get(suite.baseline, [])
            rows = [summarise(results, baseline) for results in by_method.values()]
            lines += [f"## {problem}", "", *_table(rows, suite.baseline), ""]
        return lines

    def figure(self, collected: Collected) -> Figure:
        """Regret curves."""
        from benchmarks.framework.plots import regret_figure

        return regret_figure(collected)


@dataclass(frozen=True)
class Row:
    """One method's line in the table of one problem. Times are per evaluation."""

    method: str
    seeds: int
    regret: Estimate
    regret_by_mean: Estimate
    versus_baseline: PairedTest
    coverage: Estimate
    fit_seconds: float
    acquisition_seconds: float


def summarise(results: Sequence[Result], baseline: Sequence[Result]) -> Row:
    """Summarise one method's results on one problem against the baseline's."""
    final_by_mean = [r.regret_by_mean[-1] for r in results if r.regret_by_mean is not None]
    covered = [_mean(r.extras["covered"]) for r in results if "covered" in r.extras]
    return Row(
        method=results[0].method,
        seeds=len(results),
        regret=Estimate.of([r.regret_by_outcome[-1] for r in results]),
        regret_by_mean=Estimate.of(final_by_mean),
        versus_baseline=paired_test(
            final_regrets(results, "outcome"), final_regrets(baseline, "outcome")
        ),
        coverage=Estimate.of(covered),
        fit_seconds=float(np.mean([np.mean(r.fit_seconds) for r in results])),
        acquisition_seconds=float(np.mean([np.mean(r.acquisition_seconds) for r in results])),
    )


def _mean(values: Sequence[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))


def _table(rows: Sequence[Row], baseline: str) -> list[str]:
    header = [
        "method",
        "seeds",
        "regret",
        f"difference to {baseline}",
        "t-test p",
        "Wilcoxon p",
        "regret, posterior mean",
        "coverage",
        "fit s",
        "acquisition s",
    ]
    body = []
    for row in rows:
        test = row.versus_baseline
        compared = row.method != baseline
        cells = [
            row.method,
            str(row.seeds),
            estimate(row.regret),
            estimate(test.difference) if compared else "–",
            number(test.t_p_value, 2) if compared else "–",
            number(test.wilcoxon_p_value, 2) if compared else "–",
            estimate(row.regret_by_mean),
            estimate(row.coverage),
            number(row.fit_seconds),
            number(row.acquisition_seconds),
        ]
        body.append(cells)
    return table(header, body)
