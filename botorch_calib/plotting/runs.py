"""Figures of optimization runs: regret, and parallel evaluations over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError

from botorch_calib.ledger import Trial, TrialStatus
from botorch_calib.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colour and hatch of the bars of each status. Hatches tell the statuses apart without colours.
STATUS_STYLES = {
    TrialStatus.OBSERVED: (style.COLORS[0], ""),
    TrialStatus.PENDING: (style.COLORS[5], "//"),
    TrialStatus.EXPIRED: (style.COLORS[4], ".."),
    TrialStatus.FAILED: (style.COLORS[1], "xx"),
}


def plot_regret(curves: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Plot the mean regret of each method with a band of one standard error over seeds.

    Args:
        curves: Regrets ``seeds x T`` of each method, by name. Column 0 is the regret after the
            initial design, and each later column is the regret after one more evaluation. No band
            is drawn for a method with a single seed.
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> ax = plot_regret({"random": torch.rand(5, 20).cummin(dim=-1).values})  # seeds x rounds
    """
    arrays = {name: style.as_array(values) for name, values in curves.items()}
    for name, values in arrays.items():
        if values.ndim != 2 or values.size == 0:
            raise BotorchTensorDimensionError(
                f"`curves[{name!r}]` must have shape seeds x T, got {values.shape}."
            )
    ax = style.new_axes((7.5, 4.2)) if ax is None else ax
    kinds = cycle(style.COLORS), cycle(style.LINE_STYLES)
    for (name, values), color, line in zip(arrays.items(), *kinds, strict=False):
        num_runs, num_steps = values.shape
        steps, mean = np.arange(num_steps), values.mean(axis=0)
        label = f"{name} ({num_runs} {'run' if num_runs == 1 else 'runs'})"
        ax.plot(steps, mean, color=color, linestyle=line, linewidth=2, label=label)
        if num_runs > 1:
            error = values.std(axis=0, ddof=1) / np.sqrt(num_runs)
            ax.fill_between(steps, mean - error, mean + error, color=color, alpha=0.2, lw=0)
    names = ("evaluations after the initial design", "simple regret (units of the objective)")
    return style.finished(ax, *names, title="mean ± 1 standard error")


def plot_timeline(
    trials: Sequence[Trial], now: float | None = None, ax: Axes | None = None
) -> Axes:
    """Plot a bar for each trial, from the submission to the arrival of the value.

    The bar of a trial without a value ends at ``now``. This includes failed trials, since their end
    is not known.

    Args:
        trials: Trials of a `FeedbackLedger`, such as ``ledger.trials``; at least one.
        now: The present time on the ledger's clock (default: the last time in ``trials``).
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> ax = plot_timeline(ledger.trials)
    """
    if not len(trials):  # `not trials` would be False for an empty ledger
        raise InputDataError("`trials` must hold at least one trial.")
    times = [time for t in trials for time in (t.submitted_at, t.observed_at) if time is not None]
    now = max(times) if now is None else now
    ax = style.new_axes((9.4, 4.2)) if ax is None else ax
    for status, (color, hatch) in STATUS_STYLES.items():
        chosen = [trial for trial in trials if trial.status == status]
        if not chosen:
            continue
        starts = [trial.submitted_at for trial in chosen]
        ends = [now if trial.observed_at is None else trial.observed_at for trial in chosen]
        ax.barh(
            [trial.id for trial in chosen],
            [end - start for start, end in zip(starts, ends, strict=True)],
            left=starts,
            color=color,
            hatch=hatch,
            edgecolor="white",  # the colour of the hatch
            # Hundreds of bars would be hidden by their edges, or vanish if rounded to whole pixels.
            linewidth=0,
            snap=False,
            label=f"{status.value} ({len(chosen)})",
        )
    ax.invert_yaxis()
    ax.locator_params(axis="y", integer=True)
    return style.finished(ax, "time on the ledger's clock", "trial")
