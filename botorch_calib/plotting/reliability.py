"""Stated against observed frequencies: reliability and the histogram of PITs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_calib._validation import check_count, check_open_unit
from botorch_calib.diagnostics import CalibrationReport
from botorch_calib.diagnostics.simultaneous_bands import (
    simultaneous_band,
    simultaneous_histogram_band,
)
from botorch_calib.plotting.style import (
    BASE_COLOR,
    CALIBRATED_COLOR,
    COLORS,
    MARKERS,
    as_array,
    label_axes,
    legend_beside,
    new_axes,
    to_numpy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_reliability(
    levels: Sequence[float] | np.ndarray | CalibrationReport,
    observed: Mapping[str, Any] | None = None,
    num_observations: int | None = None,
    confidence: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Stated against observed frequencies, of quantiles or of central prediction intervals.

    A report shows the share of observations at or below each quantile: a curve flatter than the
    diagonal belongs to distributions that are too narrow. Given levels and frequencies are taken as
    coverages of central intervals, which are too narrow below the diagonal. The band holds the
    whole curve of true statements, in that many independent observations.

    Args:
        levels: A report, which holds the next two arguments, or stated coverages ``M``, increasing,
            in (0, 1).
        observed: By method, the observed frequencies ``M``, in [0, 1].
        num_observations: Number of observations behind each frequency.
        confidence: Probability with which the band holds the whole curve, in (0, 1).
        ax: Axes to draw into.
    """
    check_open_unit("confidence", confidence)
    labels = ("stated coverage", "observed coverage")
    if isinstance(levels, CalibrationReport):
        if observed is not None or num_observations is not None:
            raise InputDataError("A report holds `observed` and `num_observations` already.")
        report, labels = levels, ("quantile level", "share at or below the quantile")
        # The base model first, as in the other figures, where blue is its colour.
        forecasts = reversed(report.forecasts.items())
        observed = {name: scores.frequencies for name, scores in forecasts}
        levels, num_observations = as_array(report.levels), report.num_observations
    if observed is None or num_observations is None or num_observations < 1:
        raise InputDataError(
            "Give a report, such as `calibration_report(model)`, or `levels` together with "
            f"`observed` and `num_observations`, at least 1, got {type(levels).__name__} and "
            f"{num_observations} observations."
        )
    stated = np.asarray(levels, dtype=float)
    if stated.ndim != 1 or not ((stated > 0) & (stated < 1)).all():
        raise InputDataError("`levels` must be a vector of numbers in (0, 1).")
    shares = {name: as_array(values) for name, values in observed.items()}
    for name, values in shares.items():
        if values.shape != stated.shape:
            raise BotorchTensorDimensionError(
                f"`observed[{name!r}]` must have one frequency for each of {len(stated)} levels, "
                f"got shape {values.shape}."
            )
        if not ((values >= 0) & (values <= 1)).all():
            raise InputDataError(
                f"`observed[{name!r}]` must hold frequencies in [0, 1], not counts."
            )
    ax = new_axes((7.6, 4.6)) if ax is None else ax
    low, high = simultaneous_band(num_observations, stated, confidence)
    grid, low, high = (np.concatenate([[0.0], each, [1.0]]) for each in (stated, low, high))
    label = f"{confidence:.0%} band for true\nstatements, n = {num_observations}"
    ax.fill_between(grid, low, high, color="0.88", lw=0, label=label)
    ax.plot([0, 1], [0, 1], color="0.4", linewidth=1.2, label="stated = observed")
    for index, (name, frequencies) in enumerate(shares.items()):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        ax.plot(stated, frequencies, color=color, marker=marker, linewidth=2, label=name)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    label_axes(ax, *labels)
    legend_beside(ax)
    return ax


def plot_pit_histogram(
    report: CalibrationReport, num_bins: int = 10, confidence: float = 0.95, ax: Axes | None = None
) -> Axes:
    """Histogram of the probability integral transforms, which true statements make flat.

    Peaks at both ends belong to distributions that are too narrow, a hump in the middle to
    distributions that are too wide, and a slope to a bias. The band holds the heights of all bars
    under true statements.

    Args:
        report: A calibration report.
        num_bins: Number of bins of equal width.
        confidence: Probability with which the band holds all bars, in (0, 1).
        ax: Axes to draw into.
    """
    check_open_unit("confidence", confidence)
    check_count("num_bins", num_bins)
    ax = new_axes((8.2, 4.2)) if ax is None else ax
    count, edges = report.num_observations, np.linspace(0.0, 1.0, num_bins + 1)
    low, high = simultaneous_histogram_band(count, num_bins, confidence)
    label = f"{confidence:.0%} band for true\nstatements, n = {count}"
    ax.axhspan(low * num_bins, high * num_bins, color="0.88", lw=0, label=label)
    ax.axhline(1.0, color="0.4", linewidth=1.2, label="uniform")
    for name, scores in report.forecasts.items():
        heights = np.histogram(to_numpy(scores.pits), edges)[0] * num_bins / count
        color = CALIBRATED_COLOR if scores is report.calibrated else BASE_COLOR
        if scores is report.calibrated:
            ax.stairs(heights, edges, fill=True, color=color, alpha=0.3)
        style = "-" if scores is report.calibrated else "--"
        ax.stairs(heights, edges, color=color, linewidth=2, linestyle=style, label=name)
    ax.set(xlim=(0, 1))
    ax.set_ylim(bottom=0.0)
    label_axes(ax, "stated probability of a lower value (PIT)", "relative frequency, uniform = 1")
    legend_beside(ax)
    return ax
