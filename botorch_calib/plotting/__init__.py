"""Figures of calibration and optimization runs; ``pip install botorch_calib[plot]``.

Every ``plot_`` function draws into ``ax`` (default: the axes of a new figure) and returns these
axes, so labels, titles and limits can still be changed. Legends are outside of the axes. So save a
figure with ``bbox_inches="tight"``, unless the figure was made with ``layout="constrained"``.
"""

from botorch_calib.plotting.diagnostics import (
    plot_calibration_alarm,
    plot_coverage_over_time,
    plot_noise_likelihood,
    plot_pit_histogram,
    plot_reliability,
)
from botorch_calib.plotting.models import (
    interval_half_width,
    plot_certified_region,
    plot_intervals,
    plot_threshold_map,
    prediction_interval,
)
from botorch_calib.plotting.runs import plot_regret, plot_timeline
from botorch_calib.plotting.style import COLORS, LABEL_SIZE, LEGEND_SIZE, TICK_SIZE

__all__ = [
    "COLORS",
    "LABEL_SIZE",
    "LEGEND_SIZE",
    "TICK_SIZE",
    "interval_half_width",
    "plot_calibration_alarm",
    "plot_certified_region",
    "plot_coverage_over_time",
    "plot_intervals",
    "plot_noise_likelihood",
    "plot_pit_histogram",
    "plot_regret",
    "plot_reliability",
    "plot_threshold_map",
    "plot_timeline",
    "prediction_interval",
]
