"""Pages of markdown with placeholders, and the cells and rows of tables that replace them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks.framework import statistics
from benchmarks.framework.replicate_result import ByMethod, Result, Score, by_seed, seed_means
from benchmarks.framework.statistics import Estimate, PairedTest

PAGES_DIR = Path(__file__).parents[1] / "pages"

# A standard error below this fraction of the mean is only a rounding error.
ROUNDING = 1e-12


def page(name: str, **slots: str | float | Sequence[str]) -> list[str]:
    """The lines of ``pages/NAME.md``; ``slots`` replace its placeholders by text or numbers."""
    filled = {
        slot: f"{value:g}"
        if isinstance(value, (int, float))
        else value
        if isinstance(value, str)
        else "\n".join(value)
        for slot, value in slots.items()
    }
    text = (PAGES_DIR / f"{name}.md").read_text(encoding="utf-8")
    return text.format(**filled).split("\n")


def sections(
    collected: Mapping[str, ByMethod], make: Callable[[ByMethod], Sequence[str]], level: str = "##"
) -> list[str]:
    """Lines with a heading and a table for each problem."""
    lines: list[str] = []
    for problem, by_method in collected.items():
        lines += [f"{level} {problem}", "", *make(by_method), ""]
    return lines[:-1]


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [line(header), line(["---"] * len(header)), *map(line, rows)]


def line(cells: Sequence[str]) -> str:
    """One row of a table."""
    return "| " + " | ".join(cells) + " |"


def number(value: float, digits: int = 3) -> str:
    """A number, or a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.{digits}g}"


def estimate(value: Estimate) -> str:
    """A mean with its standard error, if there is one."""
    if math.isnan(value.mean):
        return "–"
    if math.isnan(value.standard_error):
        return f"{value.mean:.3g}"
    # Even if all values are equal, their computed mean may differ by a rounding error.
    error = 0.0 if value.standard_error < ROUNDING * abs(value.mean) else value.standard_error
    return f"{value.mean:.3g} ± {error:.2g}"


def difference(test: PairedTest, compared: bool = True) -> str:
    """A paired difference with Wilcoxon's p-value; a dash if there is nothing to compare."""
    if not compared or test.pairs == 0:
        return "–"
    return f"{estimate(test.difference)} ({number(test.wilcoxon_p_value, 2)})"


def interval(values: Sequence[float], form: str) -> str:
    """Student's 95 % interval of a mean; a dash for fewer than two values."""
    if len(values) < 2:
        return "–"
    low, high = statistics.student_interval(values)
    return f"{low:{form}} to {high:{form}}"


def mean_with_interval(values: Sequence[float], form: str) -> str:
    """A mean with its interval; a dash without values."""
    return f"{np.mean(values):{form}} ({interval(values, form)})" if len(values) else "–"


def over_seeds(case: Sequence[ByMethod], method: str, score: Score, form: str) -> str:
    """The mean over seeds, with its interval, of a method's score, averaged over problems."""
    return mean_with_interval(list(seed_means(case, method, score).values()), form)


def scores_by_method(by_method: ByMethod, scores: Mapping[str, Score]) -> list[str]:
    """A table with a row for each method: mean ± standard error of each score over seeds."""
    body = [
        [method, str(len(results)), *(estimated(results, score) for score in scores.values())]
        for method, results in by_method.items()
    ]
    return table(["method", "seeds", *scores], body)


def estimated(results: Sequence[Result], score: Score) -> str:
    """A score's mean ± standard error over seeds."""
    return estimate(Estimate.of([*by_seed(results, score).values()]))


def percent(test: PairedTest) -> Estimate:
    """The difference in percent, for a test whose values are in units of the baseline's mean."""
    return Estimate(100 * test.difference.mean, 100 * test.difference.standard_error)
