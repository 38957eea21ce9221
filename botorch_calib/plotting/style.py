"""Colours, sizes, axes and legends of all figures, and conversions of their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colorbar import Colorbar

#: Okabe and Ito's colours, which colour-blind readers can distinguish.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Line styles. Curves differ in style and in colour, so they can be told apart in black and white.
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

#: Colours of a report's base and calibrated model.
BASE_COLOR, CALIBRATED_COLOR = COLORS[:2]

#: Colour of reference lines and bands, visible on light and dark pages.
REFERENCE_COLOR = "0.5"
BAND: dict[str, Any] = {"color": REFERENCE_COLOR, "alpha": 0.25, "lw": 0}

LABEL_SIZE = 13
TICK_SIZE = 12
LEGEND_SIZE = 12

#: Arguments of legends outside of the axes: to the right or, for maps with a colour bar, above. The
#: marks of maps are black, so a legend above has a light background, even on a dark page.
RIGHT: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "frameon": False}
LIGHT = {"facecolor": "white", "labelcolor": "black", "edgecolor": "none"}
ABOVE = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "ncols": 2, **LIGHT}


def new_axes(size: tuple[float, float]) -> Axes:
    """Return the axes of a new figure with the width and height ``size`` in inches."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Plotting needs matplotlib: pip install botorch_calib[plot]") from error
    return plt.subplots(figsize=size, layout="constrained")[1]


def ink() -> str:
    """Return Matplotlib's colour of text, for lines and marks that do not belong to a method."""
    import matplotlib as mpl

    return str(mpl.rcParams["text.color"])


def finished(
    ax: Axes, xlabel: str, ylabel: str, title: str | None = None, legend: dict[str, Any] = RIGHT
) -> Axes:
    """Add axis labels and a legend, entitled ``title``, and remove the upper and right spines.

    Returns the axes. ``legend`` holds arguments of ``Axes.legend``, such as `RIGHT` or `ABOVE`.
    """
    ax.set_xlabel(xlabel, fontsize=LABEL_SIZE)
    ax.set_ylabel(ylabel, fontsize=LABEL_SIZE)
    ax.tick_params(labelsize=TICK_SIZE)
    ax.spines[["top", "right"]].set_visible(False)
    sizes: dict[str, Any] = {"fontsize": LEGEND_SIZE, "title_fontsize": LEGEND_SIZE}
    ax.legend(title=title, alignment="left", **sizes, **legend)
    return ax


def add_colorbar(ax: Axes, drawn: ScalarMappable, label: str, extend: str = "neither") -> Colorbar:
    """Add a colour bar for ``drawn`` to the figure of ``ax``, and return the colour bar."""
    bar = ax.figure.colorbar(drawn, ax=ax, extend=extend)
    bar.ax.tick_params(labelsize=TICK_SIZE)
    bar.set_label(label, fontsize=LABEL_SIZE)
    return bar


def percent(share: float) -> str:
    """Return a probability as a percentage, such as 80% or 99.5%."""
    return f"{100.0 * share:.4g}%"


def to_numpy(values: Tensor) -> np.ndarray:
    """Return the elements of a tensor, of any shape, as a NumPy vector."""
    return values.detach().cpu().reshape(-1).numpy()


def as_array(values: ArrayLike | Tensor) -> np.ndarray:
    """Convert a tensor or array-like to a NumPy array of floats with the same shape."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=float)
