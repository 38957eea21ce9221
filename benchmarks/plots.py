"""Regret curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.core import Result
from benchmarks.metrics import regret_trace

COLUMNS = 4


def mean_and_band(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over seeds of ``seeds x steps`` curves (error 0 for one seed)."""
    mean = curves.mean(axis=0)
    if len(curves) < 2:
        return mean, np.zeros_like(mean)
    return mean, curves.std(axis=0, ddof=1) / np.sqrt(len(curves))


def regret_figure(
    collected: Mapping[str, Mapping[str, Sequence[Result]]], inference: str = "outcome"
) -> Figure:
    """One panel per problem: mean simple regret by method, with bands of one standard error.

    Args:
        collected: Results by problem and method.
        inference: See `metrics.regret_trace`.
    """
    figure, panels = panel_grid(len(collected), COLUMNS, (5.0, 3.8))
    for panel, (problem, by_method) in zip(panels, collected.items(), strict=True):
        for method, results in by_method.items():
            draw_mean(panel, method, np.array([regret_trace(r, inference) for r in results]))
        panel.set(title=problem, xlabel="evaluations after the initial design")
        panel.set_ylabel("simple regret")
        panel.legend()
    return figure


def panel_grid(
    count: int, columns: int, panel_size: tuple[float, float]
) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels of the given size in inches, row by row."""
    columns = min(count, columns)
    rows = -(-count // columns)
    width, height = panel_size
    # Built without pyplot, so that no global state or display is involved.
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for panel in panels[count:]:
        panel.remove()
    return figure, panels[:count]


def draw_mean(
    panel: Axes,
    method: str,
    curves: np.ndarray,
    style: str = "-",
    first: int = 0,
    alpha: float = 0.2,
) -> None:
    """The mean of ``seeds x steps`` curves with its band, the steps counted from ``first``."""
    mean, error = mean_and_band(curves)
    steps = np.arange(first, first + len(mean))
    (line,) = panel.plot(steps, mean, style, label=f"{method} ({len(curves)})")
    panel.fill_between(steps, mean - error, mean + error, alpha=alpha, color=line.get_color())
