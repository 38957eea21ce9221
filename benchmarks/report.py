"""Tables and figures of a suite's results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from benchmarks.core import Result
from benchmarks.store import BENCHMARKS_DIR, ResultStore, write_atomically
from benchmarks.suites import Suite

TABLES_DIR = BENCHMARKS_DIR / "tables"
FIGURES_DIR = BENCHMARKS_DIR / "figures"


@dataclass(frozen=True)
class Estimate:
    """A mean with its standard error (NaN for fewer than two values)."""

    mean: float
    standard_error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Estimate:
        """Estimate from independent values."""
        if len(values) == 0:
            return cls(math.nan, math.nan)
        error = np.std(values, ddof=1) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        return cls(float(np.mean(values)), float(error))


@dataclass(frozen=True)
class PairedTest:
    """Differences ``method - baseline`` over common seeds, and two-sided p-values.

    A negative difference of regrets is in favour of the method. The p-values are NaN where
    a test says nothing: fewer than two pairs, or differences that are all equal.
    """

    pairs: int
    difference: Estimate
    t_p_value: float
    wilcoxon_p_value: float


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


def paired_test(values: dict[int, float], baseline: dict[int, float]) -> PairedTest:
    """Compare values by seed with the baseline's values of the same seeds."""
    seeds = sorted(values.keys() & baseline.keys())
    a = np.array([values[seed] for seed in seeds])
    b = np.array([baseline[seed] for seed in seeds])
    differences = a - b
    t_p = wilcoxon_p = math.nan
    if len(seeds) > 1 and np.ptp(differences) > 0:
        t_p = float(stats.ttest_rel(a, b).pvalue)
        wilcoxon_p = float(stats.wilcoxon(differences).pvalue)
    return PairedTest(len(seeds), Estimate.of(differences.tolist()), t_p, wilcoxon_p)


def summarise(results: Sequence[Result], baseline: Sequence[Result]) -> Row:
    """Summarise one method's results on one problem against the baseline's."""
    final_by_mean = [r.regret_by_mean[-1] for r in results if r.regret_by_mean is not None]
    covered = [_mean(r.extras["covered"]) for r in results if "covered" in r.extras]
    return Row(
        method=results[0].method,
        seeds=len(results),
        regret=Estimate.of([r.regret_by_outcome[-1] for r in results]),
        regret_by_mean=Estimate.of(final_by_mean),
        versus_baseline=paired_test(_final_regret(results), _final_regret(baseline)),
        coverage=Estimate.of(covered),
        fit_seconds=float(np.mean([np.mean(r.fit_seconds) for r in results])),
        acquisition_seconds=float(np.mean([np.mean(r.acquisition_seconds) for r in results])),
    )


def _mean(values: Sequence[float | None]) -> float:
    return float(np.mean([value for value in values if value is not None]))


def _final_regret(results: Sequence[Result]) -> dict[int, float]:
    return {r.seed: r.regret_by_outcome[-1] for r in results}


Collected = dict[str, dict[str, list[Result]]]


def collect(suite: Suite, store: ResultStore) -> tuple[Collected, int]:
    """Results by problem and method, methods without any left out, and the unfit files' count."""
    collected: Collected = {}
    unfit = 0
    for problem in suite.problems:
        for method in suite.methods:
            results, bad = store.load(suite.name, problem, method)
            unfit += bad
            if results:
                collected.setdefault(problem.name, {})[method.name] = results
    return collected, unfit


def markdown(suite: Suite, collected: Collected, unfit: int = 0) -> str:
    """The report of a suite as markdown."""
    lines = [
        f"# Suite `{suite.name}`",
        "",
        f"Reproduce with `python -m benchmarks run {suite.name}` and then "
        f"`python -m benchmarks report {suite.name}`.",
        "",
        "Final simple regret f(x*) - f(x), at the point with the largest outcome and at the "
        "one with the largest posterior mean: mean ± standard error over seeds, lower is "
        f"better. Differences are paired by seed with `{suite.baseline}`; p-values are "
        "two-sided. Coverage is that of the interval stated before each outcome; times are "
        "per evaluation.",
        "",
    ]
    if unfit:
        lines += [f"{unfit} unreadable or outdated result files were left out.", ""]
    for problem, by_method in collected.items():
        baseline = by_method.get(suite.baseline, [])
        rows = [summarise(results, baseline) for results in by_method.values()]
        lines += [f"## {problem}", "", *_table(rows, suite.baseline), ""]
    return "\n".join([*lines, *_versions(collected), ""])


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
    lines = [_line(header), _line(["---"] * len(header))]
    for row in rows:
        test = row.versus_baseline
        compared = row.method != baseline
        cells = [
            row.method,
            str(row.seeds),
            _estimate(row.regret),
            _estimate(test.difference) if compared else "–",
            _number(test.t_p_value, 2) if compared else "–",
            _number(test.wilcoxon_p_value, 2) if compared else "–",
            _estimate(row.regret_by_mean),
            _estimate(row.coverage),
            _number(row.fit_seconds),
            _number(row.acquisition_seconds),
        ]
        lines.append(_line(cells))
    return lines


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float, digits: int = 3) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}g}"


def _estimate(estimate: Estimate) -> str:
    if math.isnan(estimate.mean):
        return "–"
    error = "" if math.isnan(estimate.standard_error) else f" ± {estimate.standard_error:.2g}"
    return f"{estimate.mean:.3g}{error}"


def _versions(collected: Collected) -> list[str]:
    found = {
        ", ".join(f"{name} {number}" for name, number in result.versions.items())
        for by_method in collected.values()
        for results in by_method.values()
        for result in results
    }
    note = ["The results mix several versions:"] if len(found) > 1 else []
    return [*note, *sorted(found)]


def write_report(
    suite: Suite,
    store: ResultStore,
    tables: Path = TABLES_DIR,
    figures: Path = FIGURES_DIR,
) -> str:
    """Write ``tables/SUITE.md`` and ``figures/SUITE.png``; return the markdown."""
    from benchmarks.plots import regret_figure

    collected, unfit = collect(suite, store)
    if not collected:
        raise FileNotFoundError(f"There are no results of suite {suite.name!r} yet.")
    text = markdown(suite, collected, unfit)
    write_atomically(tables / f"{suite.name}.md", text)
    figures.mkdir(parents=True, exist_ok=True)
    regret_figure(collected).savefig(figures / f"{suite.name}.png", dpi=150)
    return text
