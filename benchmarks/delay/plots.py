"""Regret curves under delayed feedback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from benchmarks.framework.metrics import trace
from benchmarks.framework.plots import draw_mean, method_colors, panel_grid, share_legend
from benchmarks.framework.sequential import Result

COLUMNS = 3


def delay_figure(collected: Mapping[str, Mapping[str, Sequence[Result]]]) -> Figure:
    """One panel per problem: mean regret by round and method, with bands of one standard error.

    It is the simple regret of what has arrived; with contexts, the cumulative regret of all
    queries.
    """
    figure, panels = panel_grid(len(collected), COLUMNS, (5.5, 4.0))
    colors = method_colors(collected)
    for panel, (problem, by_method) in zip(panels, collected.items(), strict=True):
        simple = all("simple_regret" in r.extras for runs in by_method.values() for r in runs)
        for method, results in by_method.items():
            name = "simple_regret" if simple else "cumulative_regret_all"
            curves = np.array([trace(result, name) for result in results])
            draw_mean(panel, method, curves, style_of(method), alpha=0.15, color=colors[method])
        panel.set(title=problem, xlabel="round")
        panel.set_ylabel("simple regret, arrived" if simple else "cumulative regret, all")
    share_legend(figure, panels)
    return figure


def style_of(method: str) -> str:
    """The line of a method, by its kind."""
    return {"ts": "--", "qlogei": ":", "qucb": "-."}.get(method.partition("_")[0], "-")
