"""Regret curves under delayed feedback."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.core import Result
from benchmarks.delay_report import trace
from benchmarks.plots import mean_and_band

COLUMNS = 3


def delay_figure(collected: Mapping[str, Mapping[str, Sequence[Result]]]) -> Figure:
    """One panel per problem: mean regret by round and method, with bands of one standard error.

    It is the simple regret of what has arrived; with contexts, the cumulative regret of all
    queries.
    """
    columns = min(len(collected), COLUMNS)
    rows = -(-len(collected) // columns)
    figure = Figure(figsize=(5.5 * columns, 4.0 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in panels[len(collected) :]:
        panel.remove()
    for panel, (problem, by_method) in zip(panels, collected.items(), strict=False):
        simple = all("simple_regret" in r.extras for runs in by_method.values() for r in runs)
        for method, results in by_method.items():
            name = "simple_regret" if simple else "cumulative_regret_all"
            _draw(panel, method, np.array([trace(result, name) for result in results]))
        panel.set(title=problem, xlabel="round")
        panel.set_ylabel("simple regret, arrived" if simple else "cumulative regret, all")
        panel.legend(fontsize="small")
    return figure


def _draw(panel: Axes, method: str, curves: np.ndarray) -> None:
    mean, error = mean_and_band(curves)
    style = {"ts": "--", "qlogei": ":", "qucb": "-."}.get(method.partition("_")[0], "-")
    rounds = np.arange(len(mean))
    (line,) = panel.plot(rounds, mean, style, label=f"{method} ({len(curves)})")
    panel.fill_between(rounds, mean - error, mean + error, alpha=0.15, color=line.get_color())
