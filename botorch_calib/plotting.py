"""Figures of calibration and of optimization runs; they need matplotlib.

Every function draws into ``ax`` (default: a new figure's) and returns it, so labels, titles
and limits can still be changed. Legends stand beside the axes, never on the data; when a
figure was not made with ``layout="constrained"``, save it with ``bbox_inches="tight"``.

Install matplotlib with ``pip install botorch_calib[plot]``. Nothing else in the package
imports it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from scipy.stats import binom
from torch import Tensor

from botorch_calib._validation import check_inputs, check_open_unit
from botorch_calib.models import CalibratedModel

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Okabe and Ito's colours, which the colour-blind can tell apart.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
#: Line styles, which vary with the colours so that curves differ in print as well.
LINE_STYLES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

LABEL_SIZE = 13
TICK_SIZE = 12
LEGEND_SIZE = 12

#: Side of the grid on which `plot_threshold_map` evaluates a model.
MAP_RESOLUTION = 101


def plot_regret(curves: Mapping[str, Any], log_scale: bool = False, ax: Axes | None = None) -> Axes:
    """Mean regret of each method with a band of one standard error over seeds.

    Args:
        curves: By method, regrets ``seeds x T``; the first column is that after the initial
            design. A single seed has no band.
        log_scale: Whether the regret axis is logarithmic.
        ax: Axes to draw into.
    """
    checked = {name: _as_curves(name, values) for name, values in curves.items()}
    ax = _new_axes((7.5, 4.2)) if ax is None else ax
    for index, (name, values) in enumerate(checked.items()):
        num_runs, num_steps = values.shape
        steps, mean = np.arange(num_steps), values.mean(axis=0)
        color = COLORS[index % len(COLORS)]
        ax.plot(
            steps,
            mean,
            color=color,
            linestyle=LINE_STYLES[index % len(LINE_STYLES)],
            linewidth=2,
            label=f"{name} ({num_runs} {'run' if num_runs == 1 else 'runs'})",
        )
        if num_runs > 1:
            error = values.std(axis=0, ddof=1) / np.sqrt(num_runs)
            ax.fill_between(steps, mean - error, mean + error, color=color, alpha=0.2, lw=0)
    if log_scale:
        # The lower end of a band may reach 0.
        ax.set_yscale("log", nonpositive="clip")
    _label(ax, "evaluations after the initial design", "simple regret (units of the objective)")
    _legend(ax, title="mean ± 1 standard error")
    return ax


def plot_reliability(
    levels: Sequence[float] | np.ndarray,
    observed: Mapping[str, Any],
    num_observations: int,
    confidence: float = 0.95,
    ax: Axes | None = None,
) -> Axes:
    """Stated against observed coverage of central prediction intervals.

    Curves below the diagonal belong to intervals that are too narrow. The band holds the
    frequency that true statements would show, level by level, in that many independent
    observations.

    Args:
        levels: Stated coverages ``M``, increasing, in (0, 1).
        observed: By method, the observed frequencies ``M``, in [0, 1].
        num_observations: Number of observations behind each frequency.
        confidence: Probability of the band, in (0, 1).
        ax: Axes to draw into.
    """
    check_open_unit("confidence", confidence)
    stated = np.asarray(levels, dtype=float)
    if stated.ndim != 1 or not ((stated > 0) & (stated < 1)).all():
        raise InputDataError("`levels` must be a vector of numbers in (0, 1).")
    if num_observations < 1:
        raise InputDataError(f"`num_observations` must be at least 1, got {num_observations}.")
    checked = {name: _as_frequencies(name, f, stated) for name, f in observed.items()}
    ax = _new_axes((7.6, 4.6)) if ax is None else ax
    _draw_band(ax, num_observations, confidence)
    for index, (name, frequencies) in enumerate(checked.items()):
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        ax.plot(stated, frequencies, color=color, marker=marker, linewidth=2, label=name)
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    _label(ax, "stated coverage", "observed coverage")
    _legend(ax)
    return ax


def plot_intervals(
    model: CalibratedModel,
    X_grid: Tensor,
    X: Tensor,
    Y: Tensor,
    truth: Tensor | None = None,
    level: float = 0.8,
    ax: Axes | None = None,
) -> Axes:
    """Calibrated prediction intervals of observations beside those of the base model, in 1-d.

    Args:
        model: A calibrated model of one input.
        X_grid: Where to draw the intervals, ``m x 1``, increasing.
        X: Observed inputs, ``n x 1``.
        Y: Observed outcomes, ``n x 1``.
        truth: The objective without noise at ``X_grid``, ``m x 1``.
        level: Probability of the intervals, in (0, 1).
        ax: Axes to draw into.
    """
    check_inputs("X_grid", X_grid, 1)
    check_inputs("X", X, 1)
    if Y.shape != X.shape or (truth is not None and truth.shape != X_grid.shape):
        raise BotorchTensorDimensionError(
            "`Y` must have the shape of `X` and `truth` that of `X_grid`, both ... x 1."
        )
    calibrated, base = (prediction_interval(m, X_grid, level) for m in (model, model.model))
    ax = _new_axes((10.5, 4.6)) if ax is None else ax
    x = _to_numpy(X_grid)
    ax.scatter(_to_numpy(X), _to_numpy(Y), s=14, color="0.45", lw=0, label="observations")
    low, high = (_to_numpy(end) for end in calibrated)
    stated = f"{level:.0%} interval"
    ax.fill_between(x, low, high, color=COLORS[1], alpha=0.3, lw=0, label=f"calibrated, {stated}")
    for end, label in zip(base, (f"Gaussian process, {stated}", None), strict=True):
        ax.plot(x, _to_numpy(end), color=COLORS[0], linestyle="--", linewidth=1.6, label=label)
    if truth is not None:
        ax.plot(x, _to_numpy(truth), color="black", linewidth=1.4, label="truth, without noise")
    ax.set_xlim(x.min(), x.max())
    _label(ax, "input x", "outcome y")
    _legend(ax)
    return ax


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
    ax = _new_axes((6.8, 5.2)) if ax is None else ax
    steps = torch.linspace(0.0, 1.0, MAP_RESOLUTION, dtype=bounds.dtype, device=bounds.device)
    first, second = (low + (high - low) * steps for low, high in bounds.T)
    grid = torch.cartesian_prod(first, second)
    widths = interval_half_width(model, grid, level).reshape(len(first), len(second))
    _draw_map(ax, [_to_numpy(first), _to_numpy(second)], widths.mT.cpu().numpy(), level)
    _draw_queries(ax, X)
    _label(ax, "input $x_1$", "input $x_2$")
    return ax


@torch.no_grad()
def prediction_interval(model: Any, X: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Ends of a model's central prediction interval of an observation.

    Args:
        model: A calibrated model or any BoTorch model whose posterior has quantiles.
        X: Points ``n x d``.
        level: Probability of the interval, in (0, 1).

    Returns:
        Lower and upper ends, each ``n x 1``.
    """
    check_open_unit("level", level)
    tails = X.new_tensor([(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    # One point a batch: only the marginals are needed.
    ends = model.posterior(X.unsqueeze(-2), observation_noise=True).quantile(tails)
    return ends[0].squeeze(-1), ends[1].squeeze(-1)


@torch.no_grad()
def interval_half_width(model: CalibratedModel, X: Tensor, level: float) -> Tensor:
    """Half-width of a calibrated interval in the base model's predictive standard deviations.

    Args:
        model: A calibrated model.
        X: Points ``n x d``.
        level: Probability of the interval, in (0, 1).

    Returns:
        Half-widths, of shape ``n``.
    """
    model.eval()
    law = model.calibrator.predictive(model.transform_inputs(X.unsqueeze(-2)))
    low, high = (law.quantile(X.new_tensor(p)) for p in ((1.0 - level) / 2.0, (1.0 + level) / 2.0))
    return ((high - low) / 2.0).expand(len(X), 1, 1).reshape(-1)


def _draw_band(ax: Axes, num_observations: int, confidence: float) -> None:
    grid = np.linspace(0.0, 1.0, 201)
    tail = (1.0 - confidence) / 2.0
    low, high = (
        binom.ppf(p, num_observations, grid) / num_observations for p in (tail, 1.0 - tail)
    )
    label = f"{confidence:.0%} band for true\nstatements, n = {num_observations}"
    ax.fill_between(grid, low, high, color="0.88", lw=0, label=label)
    ax.plot([0, 1], [0, 1], color="0.4", linewidth=1.2, label="stated = observed")


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


def _new_axes(size: tuple[float, float]) -> Axes:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("Plotting needs matplotlib: pip install botorch_calib[plot]") from error
    return plt.subplots(figsize=size, layout="constrained")[1]


def _label(ax: Axes, xlabel: str, ylabel: str) -> None:
    ax.set_xlabel(xlabel, fontsize=LABEL_SIZE)
    ax.set_ylabel(ylabel, fontsize=LABEL_SIZE)
    ax.tick_params(labelsize=TICK_SIZE)
    ax.spines[["top", "right"]].set_visible(False)


def _legend(ax: Axes, title: str | None = None) -> None:
    ax.legend(
        loc="upper left",
        bbox_to_anchor=(1.01, 1.0),
        frameon=False,
        fontsize=LEGEND_SIZE,
        title=title,
        title_fontsize=LEGEND_SIZE,
        alignment="left",
    )


def _to_numpy(values: Tensor) -> np.ndarray:
    return values.detach().cpu().reshape(-1).numpy()


def _as_array(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    return np.asarray(values, dtype=float)


def _as_curves(name: str, values: Any) -> np.ndarray:
    array = _as_array(values)
    if array.ndim != 2 or array.size == 0:
        raise BotorchTensorDimensionError(
            f"`curves[{name!r}]` must have shape seeds x T, got {array.shape}."
        )
    return array


def _as_frequencies(name: str, values: Any, levels: np.ndarray) -> np.ndarray:
    array = _as_array(values)
    if array.shape != levels.shape:
        raise BotorchTensorDimensionError(
            f"`observed[{name!r}]` must have one frequency for each of {len(levels)} levels, "
            f"got shape {array.shape}."
        )
    if not ((array >= 0) & (array <= 1)).all():
        raise InputDataError(f"`observed[{name!r}]` must hold frequencies in [0, 1], not counts.")
    return array
