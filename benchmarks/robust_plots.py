"""Curves of cumulative expected regret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.core import Result
from benchmarks.plots import mean_and_band
from benchmarks.robust_report import trace

COLUMNS = 3
DASHED = ("gp_ucb", "sbo_kde", "drbo_mmd", "drbo_mmd_minimax", "stable_opt")


def robust_figure(collected: Mapping[str, Mapping[str, Sequence[Result]]]) -> Figure:
    """One panel per problem: mean cumulative regret by round, with bands of one standard error."""
    columns = min(len(collected), COLUMNS)
    rows = -(-len(collected) // columns)
    figure = Figure(figsize=(5.5 * columns, 4.0 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in panels[len(collected) :]:
        panel.remove()
    for panel, (problem, by_method) in zip(panels, collected.items(), strict=False):
        for method, results in by_method.items():
            curves = np.array([trace(result, "cumulative_regret") for result in results])
            _draw(panel, method, curves)
        panel.set(title=problem, xlabel="round", ylabel="cumulative expected regret")
        panel.legend(fontsize="small")
    return figure


def _draw(panel: Axes, method: str, curves: np.ndarray) -> None:
    mean, error = mean_and_band(curves)
    rounds = np.arange(1, len(mean) + 1)
    style = "--" if method in DASHED else "-"
    (line,) = panel.plot(rounds, mean, style, label=f"{method} ({len(curves)})")
    panel.fill_between(rounds, mean - error, mean + error, alpha=0.15, color=line.get_color())
