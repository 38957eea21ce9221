"""Cells and rows of markdown tables."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.framework.metrics import Estimate


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
    error = "" if math.isnan(value.standard_error) else f" ± {value.standard_error:.2g}"
    return f"{value.mean:.3g}{error}"
