"""A radio network from above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from botorch_calib.plotting.style import (
    COLORS,
    add_colorbar,
    label_axes,
    legend_above,
    legend_beside,
    new_axes,
    to_numpy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Length of the arrow that shows where an antenna looks, in metres.
_REACH = 45.0


def plot_radio_network(problem: Any, x: Tensor | None = None, ax: Axes | None = None) -> Axes:
    """Base stations with their sectors, and users, coloured by their rates.

    Args:
        problem: The network, a `RadioCorridors`.
        x: Powers and tilts, of length 18; without them colours tell kinds of users apart.
        ax: Axes to draw into.
    """
    rates = None if x is None else to_numpy(problem.rates(x))
    ax = new_axes((8.4, 6.0)) if ax is None else ax
    angles = torch.deg2rad(problem.azimuths)
    left, up = (to_numpy(column) for column in problem.antennas.T[:2])
    arrows = [to_numpy(_REACH * angles.cos()), to_numpy(_REACH * angles.sin())]
    style: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 0.005}
    ax.quiver(left, up, *arrows, color="0.35", zorder=2, **style)
    ax.scatter(left, up, marker="^", s=70, color="black", label="base stations", zorder=3)
    drawn = None
    kinds = (
        ("ground users", ~problem.is_uav, "o", COLORS[0]),
        ("UAVs", problem.is_uav, "D", COLORS[1]),
    )
    for name, chosen, marker, color in kinds:
        style = {"s": 34, "color": color, "label": name}
        if rates is not None:
            values = rates[to_numpy(chosen)]
            style = {"c": values, "s": 44, "edgecolors": "black", "linewidths": 0.6}
            style["label"] = f"{name}, mean {values.mean():.2f}"
            # One scale for both kinds
            style |= {"cmap": "viridis", "vmin": 0.0, "vmax": max(rates.max(), 1e-12)}
        places = [to_numpy(column) for column in problem.users[chosen].T[:2]]
        drawn = ax.scatter(*places, marker=marker, zorder=3, **style)
    ax.set_aspect("equal")
    label_axes(ax, "x, m", "y, m")
    if rates is None:
        legend_beside(ax)
    else:
        add_colorbar(ax, drawn, "rate, bit/s/Hz", shrink=0.8)
        legend_above(ax, ncols=3)
    return ax
