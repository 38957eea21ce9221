"""The wealth of a calibration alarm as outcomes come in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from botorch_calib.diagnostics import CalibrationAlarm
from botorch_calib.plotting.style import BASE_COLOR, label_axes, legend_above, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_calibration_alarm(alarm: CalibrationAlarm, ax: Axes | None = None) -> Axes:
    """How much bets against a model's predictions have won, and where the alarm is raised.

    Args:
        alarm: The alarm, after some calls of ``observe``, or one of a report's ``alarms``.
        ax: Axes to draw into.
    """
    ax = new_axes((9.4, 4.2)) if ax is None else ax
    rounds, wealth = np.arange(len(alarm.history) + 1), [1.0, *alarm.history]
    ax.plot(rounds, wealth, color=BASE_COLOR, linewidth=2.2, label="wealth")
    needed = 1.0 / alarm.false_alarm
    ax.axhline(needed, color="black", linestyle="--", label=f"alarm, {needed:.4g}")
    if alarm.raised_at is not None:
        first = alarm.raised_at
        ax.plot([first], [wealth[first]], "o", color="black", label=str(alarm.finding))
    ax.set(yscale="log", xlim=(0, max(len(rounds) - 1, 1)))
    label_axes(ax, "rounds", "wealth")
    legend_above(ax)
    return ax
