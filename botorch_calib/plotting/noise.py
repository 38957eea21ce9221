"""The likelihood of the observation noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botorch_calib.diagnostics import NoiseDiagnosis
from botorch_calib.plotting.style import COLORS, label_axes, legend_beside, new_axes, to_numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Lowest logarithm of a relative likelihood that is shown.
_DEPTH = -8.0


def plot_noise_likelihood(diagnosis: NoiseDiagnosis, ax: Axes | None = None) -> Axes:
    """Likelihood of the observation noise, everything else in the model being fixed.

    The noise that the model states is marked, and the interval that the data support is shaded; it
    reaches the left border where it goes down to no noise.

    Args:
        diagnosis: A result of `noise_diagnosis`.
        ax: Axes to draw into.
    """
    ax = new_axes((8.6, 4.2)) if ax is None else ax
    from matplotlib.ticker import LogLocator, NullFormatter  # after `new_axes`, with its error

    deviations, heights = map(to_numpy, (diagnosis.deviations, diagnosis.log_likelihoods))
    shown = deviations[heights >= _DEPTH]
    marks = [d for d in (diagnosis.stated, diagnosis.interval[1]) if d > 0.0]
    right = 1.3 * max(shown[-1], *marks)
    # A curve that is flat down to no noise has no end on a logarithmic axis.
    floor = min(marks) / 30.0
    left = 0.75 * max(min(shown[0], *marks), floor)
    low, high = max(diagnosis.interval[0], left), diagnosis.interval[1]
    label = f"{100 * diagnosis.level:.4g} % interval"
    ax.axvspan(low, high, color=COLORS[1], alpha=0.2, lw=0, label=label)
    ax.plot(deviations, heights, color=COLORS[1], linewidth=2.2, label="likelihood")
    if diagnosis.stated > 0.0:
        ax.axvline(diagnosis.stated, color=COLORS[0], linestyle="--", linewidth=2, label="stated")
    ax.set(xscale="log", xlim=(left, right), ylim=(_DEPTH, 0.4))
    # Plain numbers, between the powers of ten where these are few
    steps = (1.0,) if right / left > 1e3 else (1.0, 2.0, 5.0)
    ax.xaxis.set_major_locator(LogLocator(subs=steps))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
    label_axes(ax, "standard deviation of the noise", "log likelihood, relative")
    legend_beside(ax)
    return ax
