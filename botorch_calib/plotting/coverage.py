"""Coverage as observations come in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from botorch_calib._validation import check_count, check_open_unit
from botorch_calib.diagnostics import CalibrationReport
from botorch_calib.plotting.style import (
    BASE_COLOR,
    CALIBRATED_COLOR,
    binomial_band,
    label_axes,
    legend_beside,
    new_axes,
    to_numpy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_coverage_over_time(
    report: CalibrationReport, window: int = 20, confidence: float = 0.95, ax: Axes | None = None
) -> Axes:
    """Coverage of the central interval: of all observations so far, and of the latest ones.

    The band holds the running coverage of true statements, step by step. A curve that tends to the
    target need not be right throughout: the window shows when it was not. Its own band would be as
    wide as the grey one is at step ``window``.

    Args:
        report: A calibration report.
        window: Number of latest observations in the sliding window, which is drawn once there are
            as many.
        confidence: Probability of the band, in (0, 1).
        ax: Axes to draw into.
    """
    check_open_unit("confidence", confidence)
    check_count("window", window)
    ax = new_axes((9.4, 4.2)) if ax is None else ax
    steps, target = np.arange(1, report.num_observations + 1), 1.0 - report.alpha
    low, high = binomial_band(steps, target, confidence)
    band = f"{confidence:.0%} band for\ntrue statements"
    ax.fill_between(steps, low, high, color="0.88", lw=0, label=band)
    ax.axhline(target, color="0.4", linewidth=1.2, label=f"target, {target:.4g}")
    for name, scores in report.forecasts.items():
        color = CALIBRATED_COLOR if scores is report.calibrated else BASE_COLOR
        running = to_numpy(scores.running_coverage)
        ax.plot(steps, running, color=color, linewidth=2.2, label=f"{name}, so far")
        if len(steps) >= window:
            weights = np.full(window, 1.0 / window)
            latest = np.convolve(to_numpy(scores.covered.double()), weights, mode="valid")
            label = f"{name}, last {window}"
            ax.plot(steps[window - 1 :], latest, color=color, linewidth=1.3, ls="--", label=label)
    ax.set(xlim=(1, max(len(steps), 2)), ylim=(0, 1.02))
    label_axes(ax, "observations", "coverage")
    legend_beside(ax)
    return ax
