"""Regret of optimization runs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from botorch.exceptions.errors import BotorchTensorDimensionError

from botorch_calib.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_regret(curves: Mapping[str, Any], log_scale: bool = False, ax: Axes | None = None) -> Axes:
    """Mean regret of each method with a band of one standard error over seeds.

    Args:
        curves: By method, regrets ``seeds x T``; the first column is that after the initial
            design. A single seed has no band.
        log_scale: Whether the regret axis is logarithmic.
        ax: Axes to draw into.

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
    if log_scale:
        # The lower end of a band may reach 0.
        ax.set_yscale("log", nonpositive="clip")
    names = ("evaluations after the initial design", "simple regret (units of the objective)")
    return style.finished(ax, *names, title="mean ± 1 standard error")
