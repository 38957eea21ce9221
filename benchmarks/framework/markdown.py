"""Cells and rows of markdown tables."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.framework import statistics
from benchmarks.framework.results import Result, Score, by_seed
from benchmarks.framework.statistics import Estimate, PairedTest

# Relative to a mean, what smaller standard errors are no more than.
ROUNDING = 1e-12


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [line(header), line(["---"] * len(header)), *map(line, rows)]


def line(cells: Sequence[str]) -> str:
    """One row."""
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
    # Equal values deviate from their mean by its rounding error.
    error = 0.0 if value.standard_error < ROUNDING * abs(value.mean) else value.standard_error
    return f"{value.mean:.3g} ± {error:.2g}"


def mean_and_half_width(values: Sequence[float], digits: int) -> str:
    """A mean ± half of Student's 95 % interval."""
    low, high = statistics.student_interval(values)
    mean = round((low + high) / 2, digits) + 0.0  # no -0.0
    return f"{mean:.{digits}f} ± {(high - low) / 2:.{digits}f}"


def difference(test: PairedTest, compared: bool = True) -> str:
    """A paired difference with Wilcoxon's p-value; a dash where nothing is compared."""
    if not compared or test.pairs == 0:
        return "–"
    return f"{estimate(test.difference)} ({number(test.wilcoxon_p_value, 2)})"


def paired_header(baseline: str) -> list[str]:
    """Headers of `paired_cells`."""
    return [f"difference to {baseline}", "t-test p", "Wilcoxon p"]


def paired_cells(test: PairedTest, compared: bool) -> list[str]:
    """A paired difference and both p-values, a cell each; dashes where nothing is compared."""
    if not compared:
        return ["–"] * 3
    p_values = (test.t_p_value, test.wilcoxon_p_value)
    return [estimate(test.difference), *(number(p, 2) for p in p_values)]


def interval(values: Sequence[float], form: str) -> str:
    """Student's 95 % interval of a mean; a dash for fewer than two values."""
    if len(values) < 2:
        return "–"
    low, high = statistics.student_interval(values)
    return f"{low:{form}} to {high:{form}}"


def mean_with_interval(values: Sequence[float], form: str) -> str:
    """A mean with its interval; a dash without values."""
    return f"{np.mean(values):{form}} ({interval(values, form)})" if len(values) else "–"


def percent(test: PairedTest) -> Estimate:
    """The difference of a test whose values are in units of the baseline's mean, in percent."""
    return Estimate(100 * test.difference.mean, 100 * test.difference.standard_error)


def pooled_difference(
    chosen: Sequence[Mapping[str, Sequence[Result]]], method: str, reference: str, score: Score
) -> str:
    """The difference over all problems that have the score, in percent, with its p-value."""
    if method == reference:
        return "–"
    pairs = [
        (by_seed(runs[method], score), by_seed(runs[reference], score))
        for runs in chosen
        if reference in runs
    ]
    pairs = [(own, other) for own, other in pairs if own and other and any(other.values())]
    if not pairs:
        return "–"
    test = statistics.pooled_test(*map(list, zip(*pairs, strict=True)))
    return f"{estimate(percent(test))} ({number(test.wilcoxon_p_value, 2)})"
