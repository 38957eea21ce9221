"""The wealth of an alarm, from 1 on, and the round in which it was raised."""

from __future__ import annotations

import numpy as np
import torch

from botorch_calib.diagnostics import CalibrationAlarm
from botorch_calib.plotting import plot_calibration_alarm
from tests.plotting.figures import labels


def test_the_wealth_and_the_round_of_the_alarm() -> None:
    alarm = CalibrationAlarm(0.1)
    ax = plot_calibration_alarm(alarm)
    assert np.asarray(ax.get_lines()[0].get_ydata()).tolist() == [1.0]
    for u in [0.5, *[0.01, 0.99] * 8]:
        alarm.observe(torch.tensor([u]))
    ax = plot_calibration_alarm(alarm)
    curve, line, mark = ax.get_lines()
    assert np.asarray(curve.get_ydata()).tolist() == [1.0, *alarm.history]
    assert set(np.asarray(line.get_ydata()).tolist()) == {10.0}
    first = int(np.asarray(mark.get_xdata())[0])
    assert alarm.history[first - 1] >= 10 > max(alarm.history[: first - 1])
    assert str(alarm.finding) in labels(ax) and "alarm, 10" in labels(ax)
