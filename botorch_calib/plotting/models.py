"""Figures of calibrated models and chance constraints: intervals in 1-d and maps in 2-d."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.models.model import Model
from botorch.utils.transforms import is_ensemble
from numpy.typing import ArrayLike
from torch import Tensor

from botorch_calib._validation import (
    check_array,
    check_inputs,
    check_instance,
    check_model,
    check_open_unit,
    check_pairs,
    check_tensor,
)
from botorch_calib.calibration import Calibrator
from botorch_calib.decisions.chance_constraint import ChanceConstraint
from botorch_calib.models import CalibratedModel
from botorch_calib.models.predict import outcome_posterior, predict, slots_of
from botorch_calib.models.process import like
from botorch_calib.optim.feasible_search import evaluated
from botorch_calib.plotting import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh

_RESOLUTION = 101  # points along each side of a map


def plot_intervals(
    model: Model,
    X_grid: Tensor,
    X: Tensor,
    Y: Tensor,
    truth: Tensor | Callable[[Tensor], Tensor] | None = None,
    level: float = 0.8,
    ax: Axes | None = None,
) -> Axes:
    """Plot central prediction intervals of a calibrated model and of its base model over one input.

    The base model is the Gaussian process. For a model without calibration, only the intervals of
    the Gaussian process are drawn.

    Args:
        model: A model of one input, calibrated or not.
        X_grid: Points at which to draw the intervals, ``m x 1``, increasing.
        X: Observed inputs, ``n x 1``.
        Y: Observed outcomes, ``n x 1``.
        truth: The noise-free outcome at ``X_grid``, ``m x 1``, or a function that returns it for
            ``X_grid`` (default: not drawn).
        level: Probability of each interval, in (0, 1).
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> x = X[:, :1]
        >>> model = CalibratedModel.from_history(SingleTaskGP(x, Y), LocalizedConformal(0.2))
        >>> ax = plot_intervals(model, torch.linspace(0, 1, 50).double().unsqueeze(-1), x, Y)
    """
    check_inputs("X_grid", X_grid, 1)
    check_pairs(X, Y, 1)
    truth = truth(X_grid) if callable(truth) else truth
    if truth is not None and check_tensor("truth", truth).shape != X_grid.shape:
        raise BotorchTensorDimensionError(
            f"`truth` must have the shape {tuple(X_grid.shape)} of `X_grid`, got "
            f"{tuple(truth.shape)}."
        )
    process, calibrator, *_ = slots_of(check_model(model))
    low, high = (style.to_numpy(end) for end in prediction_interval(model, X_grid, level))
    ax = style.new_axes((10.5, 4.6)) if ax is None else ax
    x, x_observed, y_observed = map(style.to_numpy, (X_grid, X, Y))
    grey, blue, orange = style.REFERENCE_COLOR, *style.COLORS[:2]
    ax.scatter(x_observed, y_observed, s=14, color=grey, lw=0, label="observations")
    stated = f"{style.percent(level)} interval"
    if calibrator is not None:
        ax.fill_between(x, low, high, color=orange, alpha=0.3, lw=0, label=f"calibrated, {stated}")
    ends = map(style.to_numpy, prediction_interval(process, X_grid, level))
    for end, label in zip(ends, (f"Gaussian process, {stated}", None), strict=True):
        ax.plot(x, end, color=blue, linestyle="--", linewidth=1.6, label=label)
    if truth is not None:
        ax.plot(x, style.to_numpy(truth), color=style.ink(), lw=1.4, label="truth, without noise")
    ax.set_xlim(x.min(), x.max())
    return style.finished(ax, "input x", "outcome y")


@torch.no_grad()
def prediction_interval(model: Model, X: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Lower and upper ends, ``n x 1`` each, of a model's central prediction intervals.

    The intervals are for outcomes with observation noise.

    Args:
        model: A calibrated model, or any BoTorch model whose posterior has quantiles or that can be
            calibrated.
        X: Points ``n x d``.
        level: Probability of each interval, in (0, 1).

    Example:
        >>> lower, upper = prediction_interval(model, X, level=0.8)
    """
    check_model(model)
    check_inputs("X", X)
    check_open_unit("level", level)
    tails = X.new_tensor([(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    points = X.unsqueeze(-2)  # batches of one point each, as only marginal distributions are needed
    if is_ensemble(model):  # the posterior may have quantiles of each member only
        posterior = predict(model, points, objective=False)
    else:
        posterior = outcome_posterior(model, points)
    ends = posterior.quantile(tails)
    return ends[0].squeeze(-1), ends[1].squeeze(-1)


@torch.no_grad()
def interval_half_width(model: CalibratedModel, X: Tensor, level: float) -> Tensor:
    """Half-widths ``n`` of a model's calibrated intervals, in predictive standard deviations.

    The standard deviations are those that the base model predicts for outcomes with noise. For the
    arguments see `prediction_interval`.

    Example:
        >>> half_width = interval_half_width(model, X, level=0.8)
    """
    calibrator: Any = slots_of(check_model(model)).calibrator
    check_instance("model.calibrator", calibrator, Calibrator, "LocalizedConformal(0.2)")
    predictive: Any = predict(model, X.unsqueeze(-2), objective=False).predictive
    low, high = (predictive.quantile((1.0 + side * level) / 2.0) for side in (-1.0, 1.0))
    return ((high - low) / 2.0).expand(len(X), 1, 1).reshape(-1)


def plot_threshold_map(
    model: CalibratedModel,
    bounds: Tensor | ArrayLike,
    X: Tensor | None = None,
    level: float | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot a map of the learned half-width of the prediction interval over a box in 2-d.

    The half-width is in standard deviations of the base model, see `interval_half_width`. White
    marks the base model's own half-width. The calibrator found the base model overconfident in
    orange areas, and underconfident in purple areas. Set a title with ``ax.figure.suptitle``.

    Args:
        model: A calibrated model of two inputs.
        bounds: The box, ``2 x 2``, as a tensor or as lists: lower corner, upper corner.
        X: Points to mark, ``n x 2``, labelled as queries (default: none).
        level: Probability of the interval, in (0, 1) (default: ``1 - alpha`` of the calibrator, or
            0.8 if it has no ``alpha``).
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> ax = plot_threshold_map(model, bounds, X)
    """
    grid, axes = _grid(bounds, check_model(model))
    if X is not None:
        check_inputs("X", X, 2)
    if level is None:
        level = 1.0 - getattr(slots_of(model).calibrator, "alpha", 0.2)
    check_open_unit("level", level)
    widths = _as_image(interval_half_width(model, grid, level))
    ax = style.new_axes((6.8, 5.2)) if ax is None else ax
    own = NormalDist().inv_cdf((1.0 + level) / 2.0)
    # The colour range has a minimum, so that a nearly constant map does not look variable.
    spread = max(float(np.abs(widths - own).max()), 0.1)
    mesh = _colored(ax, axes, widths, "PuOr_r", own, spread)
    bar = style.add_colorbar(ax, mesh, "interval half-width\n(predictive standard deviations)")
    line: dict[str, Any] = {"color": "0.35", "linestyle": "--", "linewidth": 1.5}
    bar.ax.axhline(own, **line)
    ax.plot([], [], **line, label=f"{own:.2f}, the Gaussian process's own")
    if widths.min() < own < widths.max():
        ax.contour(*axes, widths, levels=[own], colors="0.35", linestyles="--", linewidths=1.5)
    return _finished(ax, axes, {"queries": X})


def plot_certified_region(
    constraint: ChanceConstraint,
    bounds: Tensor | ArrayLike,
    X: Tensor | None = None,
    violated: Tensor | None = None,
    ax: Axes | None = None,
) -> Axes:
    """Plot a map of the points in a 2-d box that a chance constraint certifies.

    Colours show the margin (`ChanceConstraint.margin`) in units of the outcome. For several
    outcomes they show the smallest margin, in standard deviations of the outcomes. Points with a
    margin of at least 0 are certified, and are purple. Other points are orange. For a title, see
    `plot_threshold_map`.

    Args:
        constraint: The constraint, on two inputs.
        bounds: The box, ``2 x 2``, as a tensor or as lists: lower corner, upper corner.
        X: Points to mark, ``n x 2``, labelled as queries (default: none).
        violated: Whether the outcome at each point of ``X`` violated a limit, ``n`` booleans, such
            as ``constraint.violated(Y)``. Crosses mark the points with violations.
        ax: Axes to draw into (default: the axes of a new figure).

    Example:
        >>> ax = plot_certified_region(constraint, bounds, X)
    """
    check_instance("constraint", constraint, ChanceConstraint)
    grid, axes = _grid(bounds, constraint.model)
    queries = {"queries": X}
    if X is not None:
        check_inputs("X", X, 2)
    if violated is not None:
        if X is None:
            raise InputDataError("`violated` has an element per query: give the queries as `X`.")
        if check_tensor("violated", violated).dtype != torch.bool or violated.numel() != len(X):
            raise BotorchTensorDimensionError(
                f"`violated` must hold {len(X)} booleans, one for each row of `X`, got "
                f"{violated.dtype} of shape {tuple(violated.shape)}."
            )
        violations = violated.reshape(-1)
        queries = {"within limits": X[~violations], "violations": X[violations]}
    ax = style.new_axes((6.8, 5.2)) if ax is None else ax
    margins = _as_image(evaluated(constraint.margin, grid.unsqueeze(-2)))
    # A few large margins would take up the colour range, and differences between margins far from 0
    # do not matter. So the range ends at a quantile, and larger margins have the last colour.
    reach = float(np.quantile(np.abs(margins), 0.9)) or 1.0
    mesh = _colored(ax, axes, margins, "PuOr", 0.0, reach)
    several = len(constraint.limits) > 1
    label = "least margin\n(standard deviations of the outcome)" if several else "margin"
    style.add_colorbar(ax, mesh, label, extend="both")
    stated = f"P ≥ {constraint.level:g}"
    if margins.min() < 0.0 <= margins.max():
        ax.contour(*axes, margins, levels=[0.0], colors="black", linewidths=1.8)
        ax.plot([], [], color="black", linewidth=1.8, label=f"certified: {stated}")
    else:
        extent = "everything" if margins.min() >= 0.0 else "nothing"
        ax.plot([], [], " ", label=f"{extent} certified: {stated}")
    return _finished(ax, axes, queries)


def _grid(bounds: Tensor | ArrayLike, model: Model) -> tuple[Tensor, list[np.ndarray]]:
    """Return points ``n x 2`` of a grid over the box, and the grid's values along both axes.

    Points have the dtype and device of ``model``.
    """
    bounds = like(model, torch.from_numpy(check_array("bounds", bounds, (2, 2))))
    if not (bounds[0] < bounds[1]).all():
        raise InputDataError("`bounds` must hold the lower corner first, then the upper one.")
    steps = torch.linspace(0.0, 1.0, _RESOLUTION, dtype=bounds.dtype, device=bounds.device)
    first, second = (low + (high - low) * steps for low, high in bounds.T)
    return torch.cartesian_prod(first, second), [style.to_numpy(first), style.to_numpy(second)]


def _as_image(values: Tensor) -> np.ndarray:
    """Return values at the points of `_grid` as a matrix, with a row for each second input."""
    return style.to_numpy(values).reshape(_RESOLUTION, _RESOLUTION).T


def _colored(
    ax: Axes, axes: list[np.ndarray], values: np.ndarray, cmap: str, center: float, spread: float
) -> QuadMesh:
    from matplotlib.colors import CenteredNorm

    norm = CenteredNorm(vcenter=center, halfrange=spread)
    # Rasterized, since the triangles would take 65 MB in vector graphics.
    return ax.pcolormesh(*axes, values, cmap=cmap, norm=norm, shading="gouraud", rasterized=True)


def _finished(ax: Axes, axes: list[np.ndarray], queries: dict[str, Tensor | None]) -> Axes:
    """Mark the points in ``queries``, given by legend label, and label the axes of a map.

    ``axes`` holds the grid's values along both axes.
    """
    for label, X in queries.items():
        if X is None or not len(X):
            continue
        marks: dict[str, Any] = {"s": 36, "zorder": 3}
        if label == "violations":
            marks = {"marker": "X", "s": 100, "zorder": 4}
        # White edges separate marks from the map. Marks at the border of the map are not clipped,
        # so that they are complete.
        marks |= {"color": "black", "edgecolor": "white", "lw": 0.8, "clip_on": False}
        ax.scatter(*X.detach().cpu().numpy().T, label=label, **marks)
    ax.set(xlim=(axes[0][0], axes[0][-1]), ylim=(axes[1][0], axes[1][-1]))
    ax.locator_params(nbins=5)
    for axis in (ax.xaxis, ax.yaxis):  # the legend would cover a common factor of the ticks
        axis.set_major_formatter("{x:.10g}")
    return style.finished(ax, "input $x_1$", "input $x_2$", legend=style.ABOVE)
