"""Curves of cumulative expected regret."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework.metrics import trace
from benchmarks.framework.plots import draw_mean, method_colors, panel_grid, share_legend
from benchmarks.framework.sequential import Result

COLUMNS = 3
DASHED = ("gp_ucb", "sbo_kde", "drbo_mmd", "drbo_mmd_minimax", "stable_opt")


def robust_figure(collected: Mapping[str, Mapping[str, Sequence[Result]]]) -> Figure:
    """One panel per problem: mean cumulative regret by round, with bands of one standard error."""
    figure, panels = panel_grid(len(collected), COLUMNS, (5.5, 4.0))
    colors = method_colors(collected)
    for panel, (problem, by_method) in zip(panels, collected.items(), strict=True):
        for method, results in by_method.items():
            curves = np.array([trace(result, "cumulative_regret") for result in results])
            style = "--" if method in DASHED else "-"
            draw_mean(panel, method, curves, style, first=1, alpha=0.15, color=colors[method])
        panel.set(title=problem, xlabel="round", ylabel="cumulative expected regret")
    share_legend(figure, panels)
    return figure
