"""Maps over the inputs of what a calibrator has learned."""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Tensor

from botorch_calib._validation import check_inputs, check_open_unit
from botorch_calib.models import CalibratedModel
from botorch_calib.plotting.intervals import interval_half_width
from botorch_calib.plotting.style import (
    LABEL_SIZE,
    LEGEND_SIZE,
    TICK_SIZE,
    label_axes,
    new_axes,
    to_numpy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes


#: Side of the grid on which `plot_threshold_map` evaluates a model.
MAP_RESOLUTION = 101


def plot_threshold_map(
    model: CalibratedModel,
    bounds: Tensor,
    X: Tensor | None = None,
    level: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Map of the learned half-width of the prediction interval over a box in two dimensions.

    White is the width that the base model states for itself; where the map is orange, the
    calibrator found it overconfident, where it is purple, underconfident. The legend stands
    above the axes: give the figure a title with ``ax.figure.suptitle``.

    Args:
        model: A calibrated model of two inputs.
        bounds: The box, ``2 x 2``: lower corner, upper corner.
        X: Queries to mark, ``n x 2``.
        level: Probability of the interval (default: that of the calibrator, or 0.8).
        ax: Axes to draw into.
    """
    if bounds.shape != (2, 2) or not (bounds[0] < bounds[1]).all():
        raise BotorchTensorDimensionError("`bounds` must be 2 x 2, the lower corner first.")
    if X is not None:
        check_inputs("X", X, 2)
    if level is None:
        level = 1.0 - getattr(model.calibrator, "alpha", 0.2)
    check_open_unit("level", level)
    ax = new_axes((6.8, 5.2)) if ax is None else ax
    steps = torch.linspace(0.0, 1.0, MAP_RESOLUTION, dtype=bounds.dtype, device=bounds.device)
    first, second = (low + (high - low) * steps for low, high in bounds.T)
    grid = torch.cartesian_prod(first, second)
    widths = interval_half_width(model, grid, level).reshape(len(first), len(second))
    _draw_map(ax, [to_numpy(first), to_numpy(second)], widths.mT.cpu().numpy(), level)
    _draw_queries(ax, X)
    label_axes(ax, "input $x_1$", "input $x_2$")
    return ax


def _draw_map(ax: Axes, axes: list[np.ndarray], widths: np.ndarray, level: float) -> None:
    from matplotlib.colors import CenteredNorm

    own = NormalDist().inv_cdf((1.0 + level) / 2.0)
    # A floor keeps the colours of an all but constant map from exaggerating it.
    spread = max(float(np.abs(widths - own).max()), 0.1)
    norm = CenteredNorm(vcenter=own, halfrange=spread)
    mesh = ax.pcolormesh(*axes, widths, cmap="PuOr_r", norm=norm, shading="gouraud")
    bar = ax.figure.colorbar(mesh, ax=ax)
    bar.ax.tick_params(labelsize=TICK_SIZE)
    bar.set_label("interval half-width\n(predictive standard deviations)", fontsize=LABEL_SIZE)
    style: dict[str, Any] = {"color": "0.35", "linestyle": "--", "linewidth": 1.5}
    bar.ax.axhline(own, **style)
    ax.plot([], [], **style, label=f"{own:.2f}, the Gaussian process's own")
    if widths.min() < own < widths.max():
        ax.contour(*axes, widths, levels=[own], colors="0.35", linestyles="--", linewidths=1.5)
    ax.set(xlim=(axes[0][0], axes[0][-1]), ylim=(axes[1][0], axes[1][-1]))
    ax.locator_params(nbins=5)


def _draw_queries(ax: Axes, X: Tensor | None) -> None:
    if X is not None:
        x1, x2 = X.detach().cpu().numpy().T
        style: dict[str, Any] = {"color": "black", "edgecolor": "white", "lw": 0.8}
        # Optimizers like the border, which would otherwise cut the marks in half.
        ax.scatter(x1, x2, s=36, label="queries", clip_on=False, zorder=3, **style)
    ax.legend(
        loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, frameon=False, fontsize=LEGEND_SIZE
    )
