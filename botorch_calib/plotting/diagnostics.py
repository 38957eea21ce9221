"""Figures of the results of `botorch_calib.diagnostics`: reports, alarms, noise likelihoods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from scipy.stats import binom
from torch import Tensor

from botorch_calib._validation import (
    check_array,
    check_count,
    check_instance,
    check_levels,
    check_open_unit,
    check_unit_interval,
    in_double,
)
from botorch_calib.diagnostics import CalibrationAlarm, CalibrationReport, NoiseDiagnosis
from botorch_calib.plotting import style
from botorch_calib.plotting.simultaneous_bands import simultaneous_band, simultaneous_histogram_band

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Lowest log likelihood, relative to the maximum, in a figure. Lower values are not shown.
_DEPTH = -8.0

_REPORT = "`calibration_report(model)`"


def plot_reliability(
    levels: Sequence[float] | np.ndarray | Tensor | CalibrationReport,
    observed: Mapping[str, Any] | None = None,
    num_observations: int | None = None,
    confidence: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Plot observed against stated frequencies of quantiles or central prediction intervals.

    For a report, the figure shows the fraction of observations at or below each quantile. A curve
    that is flatter than the diagonal means that predictive distributions are too narrow. For given
    levels and frequencies, the figure shows the coverage of central intervals. A curve below the
    diagonal then means that intervals are too narrow. The band contains the whole curve of a
    calibrated model with the probability ``confidence``.

    Args:
        levels: A report, or the stated coverages of ``M`` central intervals, increasing, in (0, 1).
        observed: For each method, by name, the ``M`` observed coverages, in [0, 1]. Leave it out
            with a report.
        num_observations: Number of observations from which each observed coverage was computed.
            Leave it out with a report.
        confidence: Probability that the band contains the whole curve, in (0, 1).
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> ax = plot_reliability(calibration_report(model))
    """
    check_open_unit("confidence", confidence)
    labels = ("stated coverage", "observed coverage")
    if isinstance(levels, CalibrationReport):
        if observed is not None or num_observations is not None:
            raise InputDataError("With a report, do not give `observed` or `num_observations`.")
        report, labels = levels, ("quantile level", "share at or below the quantile")
        # The base model comes first, so that it has the first colour, blue, as in other figures.
        forecasts = reversed(report.forecasts.items())
        observed = {name: scores.frequencies for name, scores in forecasts}
        levels, num_observations = report.levels, report.num_observations
    if observed is None or num_observations is None or num_observations < 1:
        raise InputDataError(
            f"Give a report, such as {_REPORT}, or `levels` together with "
            f"`observed` and `num_observations`, at least 1, got {type(levels).__name__} and "
            f"{num_observations} observations."
        )
    stated = check_levels("levels", in_double("levels", levels)).numpy()
    shares = {}
    for name, values in observed.items():
        shares[name] = check_array(f"observed[{name!r}]", values, stated.shape)
        check_unit_interval(f"observed[{name!r}]", torch.from_numpy(shares[name]))
    ax = style.new_axes((7.6, 4.6)) if ax is None else ax
    low, high = simultaneous_band(num_observations, stated, confidence)
    grid, low, high = (np.concatenate([[0.0], each, [1.0]]) for each in (stated, low, high))
    label = f"{style.percent(confidence)} band for true\nstatements, n = {num_observations}"
    ax.fill_between(grid, low, high, **style.BAND, label=label)
    ax.plot([0, 1], [0, 1], color=style.REFERENCE_COLOR, linewidth=1.2, label="stated = observed")
    kinds = cycle(style.COLORS), cycle(style.MARKERS)
    for (name, frequencies), color, marker in zip(shares.items(), *kinds, strict=False):
        ax.plot(stated, frequencies, color=color, marker=marker, linewidth=2, label=name)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    return style.finished(ax, *labels)


def plot_pit_histogram(
    report: CalibrationReport, num_bins: int = 10, confidence: float = 0.95, ax: Axes | None = None
) -> Axes:
    """Plot the histogram of probability integral transforms (PITs), flat for a calibrated model.

    The PIT of an outcome is its value under the predictive distribution function. The predictive
    distributions are too narrow if there are peaks at both ends, too wide if there is a peak in the
    middle, and biased if there is a slope. The band contains all bars of a calibrated model with
    the probability ``confidence``.

    Args:
        report: A calibration report.
        num_bins: Number of bins of equal width.
        confidence: Probability that the band contains all bars, in (0, 1).
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> ax = plot_pit_histogram(calibration_report(model))
    """
    check_instance("report", report, CalibrationReport, _REPORT)
    check_open_unit("confidence", confidence)
    check_count("num_bins", num_bins)
    ax = style.new_axes((8.2, 4.2)) if ax is None else ax
    count, edges = report.num_observations, np.linspace(0.0, 1.0, num_bins + 1)
    low, high = simultaneous_histogram_band(count, num_bins, confidence)
    label = f"{style.percent(confidence)} band for true\nstatements, n = {count}"
    ax.axhspan(low * num_bins, high * num_bins, **style.BAND, label=label)
    ax.axhline(1.0, color=style.REFERENCE_COLOR, linewidth=1.2, label="uniform")
    for name, scores in report.forecasts.items():
        heights = np.histogram(style.to_numpy(scores.pits), edges)[0] * num_bins / count
        color = style.CALIBRATED_COLOR if scores is report.calibrated else style.BASE_COLOR
        if scores is report.calibrated:
            ax.stairs(heights, edges, fill=True, color=color, alpha=0.3)
        line = "-" if scores is report.calibrated else "--"
        ax.stairs(heights, edges, color=color, linewidth=2, linestyle=line, label=name)
    ax.set(xlim=(0, 1))
    ax.set_ylim(bottom=0.0)
    names = ("stated probability of a lower value (PIT)", "relative frequency, uniform = 1")
    return style.finished(ax, *names)


def plot_coverage_over_time(
    report: CalibrationReport, window: int = 20, confidence: float = 0.95, ax: Axes | None = None
) -> Axes:
    """Plot the coverage of central intervals so far, and in a window of the latest observations.

    A step is one observation. At each single step, the band contains the coverage so far of a
    calibrated model with the probability ``confidence``. Even if the coverage so far approaches the
    target, the coverage may have been wrong for some time, which the curve of the window shows. A
    band for the window would be as wide at all steps as the drawn band is at step ``window``.

    Args:
        report: A calibration report, which contains the level of the intervals.
        window: Number of observations in the window. The curve of the window starts at this step.
        confidence: Probability, in (0, 1), that the band contains the coverage at a given step.
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> ax = plot_coverage_over_time(calibration_report(model))
    """
    check_instance("report", report, CalibrationReport, _REPORT)
    check_open_unit("confidence", confidence)
    check_count("window", window)
    ax = style.new_axes((9.4, 4.2)) if ax is None else ax
    steps, target = np.arange(1, report.num_observations + 1), 1.0 - report.alpha
    low, high = binom.interval(confidence, steps, target)
    band = f"{style.percent(confidence)} band for\ntrue statements"
    ax.fill_between(steps, low / steps, high / steps, **style.BAND, label=band)
    ax.axhline(target, color=style.REFERENCE_COLOR, linewidth=1.2, label=f"target, {target:.4g}")
    for name, scores in report.forecasts.items():
        color = style.CALIBRATED_COLOR if scores is report.calibrated else style.BASE_COLOR
        running = style.to_numpy(scores.running_coverage)
        ax.plot(steps, running, color=color, linewidth=2.2, label=f"{name}, so far")
        if len(steps) >= window:
            weights = np.full(window, 1.0 / window)
            latest = np.convolve(style.to_numpy(scores.covered.double()), weights, mode="valid")
            label = f"{name}, last {window}"
            ax.plot(steps[window - 1 :], latest, color=color, linewidth=1.3, ls="--", label=label)
    ax.set(xlim=(1, max(len(steps), 2)), ylim=(0, 1.02))
    return style.finished(ax, "observations", "coverage")


def plot_calibration_alarm(alarm: CalibrationAlarm, ax: Axes | None = None) -> Axes:
    """Plot the wealth that was won by betting against a model's predictions.

    The wealth starts at 1. A line marks the threshold at which the alarm is raised, the inverse of
    the allowed probability of a false alarm.

    Args:
        alarm: An alarm that has observed outcomes, such as an element of a report's ``alarms``.
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> ax = plot_calibration_alarm(calibration_report(model).alarms["calibrated"])
    """
    check_instance("alarm", alarm, CalibrationAlarm)
    ax = style.new_axes((9.4, 4.2)) if ax is None else ax
    rounds, wealth = np.arange(len(alarm.history) + 1), [1.0, *alarm.history]
    ax.plot(rounds, wealth, color=style.BASE_COLOR, linewidth=2.2, label="wealth")
    needed = 1.0 / alarm.false_alarm
    ax.axhline(needed, color=style.ink(), linestyle="--", label=f"alarm, {needed:.4g}")
    if alarm.raised_at is not None:
        first = alarm.raised_at
        ax.plot([first], [wealth[first]], "o", color=style.ink(), label=str(alarm.finding))
    ax.set(yscale="log", xlim=(0, max(len(rounds) - 1, 1)))
    return style.finished(ax, "rounds", "wealth", legend=style.ABOVE)


def plot_noise_likelihood(diagnosis: NoiseDiagnosis, ax: Axes | None = None) -> Axes:
    """Plot the likelihood of the noise level, with all other hyperparameters fixed.

    A line marks the standard deviation of the noise in the model. The shaded interval contains the
    noise levels that a likelihood ratio test does not reject. If the interval includes 0, it
    extends to the left end of the axis.

    Args:
        diagnosis: A result of `noise_diagnosis`.
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> ax = plot_noise_likelihood(noise_diagnosis(gp))
    """
    check_instance("diagnosis", diagnosis, NoiseDiagnosis, "`noise_diagnosis(gp)`")
    ax = style.new_axes((8.6, 4.2)) if ax is None else ax
    from matplotlib.ticker import LogLocator, NullFormatter  # `new_axes` has checked for matplotlib

    deviations, heights = map(style.to_numpy, (diagnosis.deviations, diagnosis.log_likelihoods))
    shown = deviations[heights >= _DEPTH]
    marks = [d for d in (diagnosis.stated, diagnosis.interval[1]) if d > 0.0]
    right = 1.3 * max(shown[-1], *marks)
    # A likelihood that stays flat as the noise goes to 0 would not bound the logarithmic axis, so
    # the axis ends at a fraction of the least marked value.
    floor = min(marks) / 30.0
    left = 0.75 * max(min(shown[0], *marks), floor)
    low, high = max(diagnosis.interval[0], left), diagnosis.interval[1]
    label = f"{100 * diagnosis.level:.4g} % interval"
    ax.axvspan(low, high, color=style.COLORS[1], alpha=0.2, lw=0, label=label)
    ax.plot(deviations, heights, color=style.COLORS[1], linewidth=2.2, label="likelihood")
    if diagnosis.stated > 0.0:
        ax.axvline(diagnosis.stated, color=style.COLORS[0], ls="--", linewidth=2, label="stated")
    ax.set(xscale="log", xlim=(left, right), ylim=(_DEPTH, 0.4))
    # Label ticks with plain numbers. If the axis has few powers of ten, add ticks between them.
    steps = (1.0,) if right / left > 1e3 else (1.0, 2.0, 5.0)
    ax.xaxis.set_major_locator(LogLocator(subs=steps))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    return style.finished(ax, "standard deviation of the noise", "log likelihood, relative")
