"""A radio network from above."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Tensor

from botorch_calib.plotting.style import (
    COLORS,
    LABEL_SIZE,
    LEGEND_SIZE,
    TICK_SIZE,
    label_axes,
    legend_beside,
    new_axes,
    to_numpy,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Length of the arrow that shows where an antenna looks, in metres.
_REACH = 45.0


def plot_radio_network(
    antennas: Tensor,
    azimuths: Tensor,
    users: Tensor,
    rates: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Base stations with their sectors, and users, coloured by their rates.

    The first three arguments are attributes of `RadioCorridors`, whose ``rates(x)`` are the last:
    ``plot_radio_network(p.antennas, p.azimuths, p.users, p.rates(x))``.

    Args:
        antennas: Positions of the antennas, ``b x 3`` in metres, the height last.
        azimuths: Where they look, ``b``, in degrees counter-clockwise from the x-axis.
        users: Positions of the users, ``k x 3``. Those above all antennas are drawn as UAVs.
        rates: Their rates in bit/s/Hz, ``k``; without them colours tell the two kinds apart.
        ax: Axes to draw into.

    Raises:
        BotorchTensorDimensionError: If the shapes do not fit together, or there are no users.
    """
    _check_shapes(antennas, azimuths, users, rates)
    ax = new_axes((8.4, 6.0)) if ax is None else ax
    _draw_antennas(ax, antennas, azimuths)
    drawn = _draw_users(ax, users, users[:, 2] > antennas[:, 2].max(), rates)
    ax.set_aspect("equal")
    label_axes(ax, "x, m", "y, m")
    if rates is None:
        legend_beside(ax)
        return ax
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.8)
    bar.set_label("rate, bit/s/Hz", fontsize=LABEL_SIZE)
    bar.ax.tick_params(labelsize=TICK_SIZE)
    # Above the axes: the colours' scale stands beside them.
    ax.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=LEGEND_SIZE
    )
    return ax


def _check_shapes(antennas: Tensor, azimuths: Tensor, users: Tensor, rates: Tensor | None) -> None:
    for name, positions in (("antennas", antennas), ("users", users)):
        if positions.ndim != 2 or positions.shape[-1] != 3:
            raise BotorchTensorDimensionError(
                f"`{name}` must have three columns, got shape {tuple(positions.shape)}."
            )
    if azimuths.shape != antennas.shape[:1]:
        raise BotorchTensorDimensionError(
            f"`azimuths` must be one number for each antenna, got shape {tuple(azimuths.shape)}."
        )
    if rates is not None and rates.shape != users.shape[:1]:
        raise BotorchTensorDimensionError(
            f"`rates` must be one number for each user, got shape {tuple(rates.shape)}."
        )
    if len(users) == 0:
        raise BotorchTensorDimensionError("`users` must hold at least one row.")


def _draw_antennas(ax: Axes, antennas: Tensor, azimuths: Tensor) -> None:
    """Base stations, and arrows to where their sectors look."""
    angles = torch.deg2rad(azimuths)
    ax.quiver(
        *_places(antennas),
        to_numpy(_REACH * angles.cos()),
        to_numpy(_REACH * angles.sin()),
        angles="xy",
        scale_units="xy",
        scale=1.0,
        width=0.005,
        color="0.35",
        zorder=2,
    )
    ax.scatter(*_places(antennas), marker="^", s=70, color="black", label="base stations", zorder=3)


def _draw_users(ax: Axes, users: Tensor, high: Tensor, rates: Tensor | None) -> Any:
    """Users on the ground and, where ``high``, in the air; the drawing that has the colours."""
    drawn = None
    kinds = (("ground users", ~high, "o", COLORS[0]), ("UAVs", high, "D", COLORS[1]))
    for name, chosen, marker, color in kinds:
        if not chosen.any():
            continue
        style: dict[str, Any] = {"s": 34, "color": color, "label": name}
        if rates is not None:
            rates = rates.detach()
            style = {
                "c": to_numpy(rates[chosen]),
                "vmin": 0.0,
                "vmax": max(float(rates.max()), 1e-12),  # one scale for both kinds
                "cmap": "viridis",
                "s": 44,
                "edgecolors": "black",
                "linewidths": 0.6,
                "label": f"{name}, mean {float(rates[chosen].mean()):.2f}",
            }
        drawn = ax.scatter(*_places(users[chosen]), marker=marker, zorder=3, **style)
    return drawn


def _places(positions: Tensor) -> tuple[np.ndarray, np.ndarray]:
    return to_numpy(positions[:, 0]), to_numpy(positions[:, 1])
