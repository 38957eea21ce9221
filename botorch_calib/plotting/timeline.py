"""Evaluations that run side by side, over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from botorch.exceptions.errors import InputDataError

from botorch_calib.ledger import Trial, TrialStatus
from botorch_calib.plotting.style import COLORS, finished, new_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Colours and hatches, so that the states differ in print as well.
STATUS_STYLES = {
    TrialStatus.OBSERVED: (COLORS[0], ""),
    TrialStatus.PENDING: (COLORS[5], "//"),
    TrialStatus.EXPIRED: (COLORS[4], ".."),
    TrialStatus.FAILED: (COLORS[1], "xx"),
}


def plot_timeline(
    trials: Sequence[Trial], now: float | None = None, ax: Axes | None = None
) -> Axes:
    """One bar for each trial, from its submission to its value's arrival.

    A trial without a value has a bar up to ``now``, as has a failed one, which does not tell when.

    Args:
        trials: Trials of a ledger: ``ledger.trials``.
        now: Time up to which to draw (default: the last one that occurs), in the unit of the
            ledger's clock.
        ax: Axes to draw into.

    Example:
        >>> ax = plot_timeline(ledger.trials)
    """
    if not trials:
        raise InputDataError("`trials` must hold at least one trial.")
    times = [time for t in trials for time in (t.submitted_at, t.observed_at) if time is not None]
    now = max(times) if now is None else now
    ax = new_axes((9.4, 4.2)) if ax is None else ax
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
            edgecolor="white",
            label=f"{status.value} ({len(chosen)})",
        )
    ax.invert_yaxis()
    ax.locator_params(axis="y", integer=True)
    return finished(ax, "time on the ledger's clock", "trial")
