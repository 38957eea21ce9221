"""Figures with panels, which show curves of means with bands, or means with intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image  # matplotlib depends on it

from benchmarks.framework.replicate_result import Collected, Result, methods_in
from benchmarks.framework.statistics import student_interval

#: Number of panels in a row, and size of a panel in inches. At this width, the letters of a figure
#: are as large as the letters of the page that shows it.
COLUMNS = 2
PANEL_SIZE = (4.0, 2.8)


def save(figure: Figure, path: Path) -> None:
    """Save a figure as PNG with 128 colours, which halves the file and looks the same."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=150)
    Image.open(drawn).convert("RGB").quantize(128).save(path, optimize=True)


def mean_and_band(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard error over seeds of ``seeds x steps`` curves (error 0 for one seed)."""
    mean = curves.mean(axis=0)
    if len(curves) < 2:
        return mean, np.zeros_like(mean)
    return mean, curves.std(axis=0, ddof=1) / np.sqrt(len(curves))


def regret_figure(collected: Collected) -> Figure:
    """One panel per problem: mean simple regret by method, with bands of one standard error.

    The vertical axis is logarithmic, unless a mean is zero or less.
    """
    xlabel = "evaluations after the initial design"
    figure = curves_figure(collected, lambda r: r.regret_by_outcome, xlabel, "simple regret")
    for panel in figure.axes:
        if all(np.min(line.get_ydata()) > 0 for line in panel.lines):
            panel.set_yscale("log", nonpositive="clip")
            panel.set_ylim(*_drawn_range(panel))
    return figure


def curves_figure(
    collected: Collected,
    curve: Callable[[Result], Sequence[float]],
    xlabel: str,
    ylabel: str,
    style: Callable[[str], str] = lambda method: "-",
    family: Callable[[str], str] = lambda method: method,
    **drawn: Any,
) -> Figure:
    """One panel per problem: a mean curve for each method, with bands of one standard error.

    Args:
        collected: Results by problem and method.
        curve: Maps a result to its curve.
        xlabel: Label of the horizontal axes.
        ylabel: Label of the vertical axes.
        style: Maps a method to the style of its line.
        family: Maps a method to a name; methods with the same name have the same colour.
        drawn: Options of `draw_mean`.
    """
    curves = {
        problem: {method: np.array([*map(curve, results)]) for method, results in by_method.items()}
        for problem, by_method in collected.items()
    }
    return figure_of_curves(curves, xlabel, ylabel, style, family, **drawn)


def figure_of_curves(
    curves: Mapping[str, Mapping[str, np.ndarray]],
    xlabel: str,
    ylabel: str,
    style: Callable[[str], str] = lambda method: "-",
    family: Callable[[str], str] = lambda method: method,
    **drawn: Any,
) -> Figure:
    """One panel per title: the means of curves, ``seeds x steps``, given by title and method.

    For the other arguments see `curves_figure`.
    """
    figure, panels = panel_grid(len(curves))
    colors = method_colors(dict.fromkeys(map(family, methods_in(curves.values()))))
    for panel, (title, by_method) in zip(panels, curves.items(), strict=True):
        for method, own in by_method.items():
            color = colors[family(method)]
            draw_mean(panel, method, own, style(method), color=color, **drawn)
        panel.set(title=title, xlabel=xlabel, ylabel=ylabel)
    share_legend(figure, panels)
    return figure


def _drawn_range(panel: Axes) -> tuple[float, float]:
    """The range of the means, with a margin. A band may reach zero, which has no logarithm."""
    values = np.concatenate([np.asarray(line.get_ydata()) for line in panel.lines])
    return values.min() / 2, values.max() * 1.5


def method_colors(methods: Iterable[str]) -> dict[str, str]:
    """A colour for each method, the same in all panels."""
    return {method: f"C{i}" for i, method in enumerate(methods)}


def share_legend(figure: Figure, panels: Sequence[Axes]) -> None:
    """Add one legend for all panels above them, with as many columns as the width allows."""
    entries: dict[str, Artist] = {}
    for panel in panels:
        handles, labels = panel.get_legend_handles_labels()
        entries.update(zip(labels, handles, strict=True))
    # Width of an entry in inches: its line, the gaps around the line, and its letters.
    width = 0.65 + 0.085 * max(map(len, entries), default=0)
    columns = max(1, int(figure.get_figwidth() / width))
    height = 0.2 + 0.2 * -(-len(entries) // columns)
    figure.set_figheight(figure.get_figheight() + height)
    figure.legend(list(entries.values()), list(entries), loc="outside upper center", ncols=columns)


def panel_grid(
    count: int, columns: int = COLUMNS, panel_size: tuple[float, float] = PANEL_SIZE
) -> tuple[Figure, list[Axes]]:
    """A figure with ``count`` panels of the given size in inches, row by row."""
    width, height = panel_size
    rows = -(-count // columns)
    # A single panel is narrower than two panels.
    total = width * (min(1.4, columns) if count == 1 else columns)
    # Built without pyplot, so that no global state or display is involved.
    figure = Figure(figsize=(total, height * rows), layout="constrained")
    columns = min(count, columns)
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
    color: str | None = None,
) -> None:
    """Draw the mean of ``seeds x steps`` curves with its band; steps are counted from ``first``."""
    mean, error = mean_and_band(curves)
    steps = np.arange(first, first + len(mean))
    (line,) = panel.plot(steps, mean, style, color=color, label=f"{method} ({len(curves)})")
    panel.fill_between(steps, mean - error, mean + error, alpha=alpha, color=line.get_color())


def draw_intervals(
    panel: Axes,
    ticks: Sequence[str],
    curves: Mapping[str, Sequence[Sequence[float]]],
    colors: Mapping[str, str],
    connected: bool = True,
) -> None:
    """Draw means with 95 % intervals, side by side at each value of a parameter.

    Args:
        panel: The panel in which to draw.
        ticks: The parameter's values, in words; they are spaced evenly.
        curves: For each label and tick, the values of all seeds. The mean of no values is not
            drawn, and a single value is drawn without an interval.
        colors: The colour of each label.
        connected: Whether a line joins the means of a label.
    """
    style = "o-" if connected else "o"
    width = 0.5 / len(curves)
    for i, (label, samples) in enumerate(curves.items()):
        places = np.arange(len(ticks)) + width * (i - 0.5 * (len(curves) - 1))
        drawn = np.array([_mean_and_interval(values) for values in samples]).reshape(-1, 3).T
        mean, low, high = drawn
        bars = (mean - low, high - mean)
        panel.errorbar(places, mean, bars, fmt=style, ms=4, lw=1, c=colors[label], label=label)
    panel.set_xticks(range(len(ticks)), ticks)


def _mean_and_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and the ends of its 95 % interval; NaN if there are too few values."""
    mean = float(np.mean(values)) if values else np.nan
    low, high = student_interval(values) if len(values) > 1 else (np.nan, np.nan)
    return mean, low, high
