"""Prediction intervals of calibrated models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.models.model import Model
from torch import Tensor

from botorch_calib._validation import check_inputs, check_open_unit
from botorch_calib.models import CalibratedModel
from botorch_calib.plotting import style
from botorch_calib.plotting.style import to_numpy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_intervals(
    model: CalibratedModel,
    X_grid: Tensor,
    X: Tensor,
    Y: Tensor,
    truth: Tensor | None = None,
    level: float = 0.8,
    ax: Axes | None = None,
    *,
    base: bool = True,
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
        base: Whether to draw the intervals of the Gaussian process without calibration.

    Example:
        >>> x = X[:, :1]
        >>> model = CalibratedModel.from_history(SingleTaskGP(x, Y), LocalizedConformal(0.2))
        >>> ax = plot_intervals(model, torch.linspace(0, 1, 50).double().unsqueeze(-1), x, Y)
    """
    check_inputs("X_grid", X_grid, 1)
    check_inputs("X", X, 1)
    if Y.shape != X.shape or (truth is not None and truth.shape != X_grid.shape):
        raise BotorchTensorDimensionError(
            "`Y` must have the shape of `X` and `truth` that of `X_grid`, both ... x 1."
        )
    low, high = (to_numpy(end) for end in prediction_interval(model, X_grid, level))
    ax = style.new_axes((10.5, 4.6)) if ax is None else ax
    x, x_observed, y_observed = map(to_numpy, (X_grid, X, Y))
    points: dict[str, Any] = {"s": 14, "color": style.REFERENCE_COLOR, "lw": 0}
    ax.scatter(x_observed, y_observed, **points, label="observations")
    stated = f"{level:.0%} interval"
    band: dict[str, Any] = {"color": style.COLORS[1], "alpha": 0.3, "lw": 0}
    ax.fill_between(x, low, high, **band, label=f"calibrated, {stated}")
    if base:
        ends = (to_numpy(end) for end in prediction_interval(model.model, X_grid, level))
        for end, label in zip(ends, (f"Gaussian process, {stated}", None), strict=True):
            ax.plot(x, end, color=style.COLORS[0], linestyle="--", linewidth=1.6, label=label)
    if truth is not None:
        ax.plot(x, to_numpy(truth), color=style.ink(), lw=1.4, label="truth, without noise")
    ax.set_xlim(x.min(), x.max())
    return style.finished(ax, "input x", "outcome y")


@torch.no_grad()
def prediction_interval(model: Model, X: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """Ends, ``n x 1`` each, of a model's central prediction interval of an observation.

    Args:
        model: A calibrated model or any BoTorch model whose posterior has quantiles.
        X: Points ``n x d``.
        level: Probability of the interval, in (0, 1).

    Example:
        >>> lower, upper = prediction_interval(model, X, level=0.8)
    """
    check_open_unit("level", level)
    tails = X.new_tensor([(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    # One point a batch: only the marginals are needed.
    ends = model.posterior(X.unsqueeze(-2), observation_noise=True).quantile(tails)
    return ends[0].squeeze(-1), ends[1].squeeze(-1)


@torch.no_grad()
def interval_half_width(model: CalibratedModel, X: Tensor, level: float) -> Tensor:
    """Half-width of a calibrated interval in the base model's predictive deviations, ``n``.

    Arguments are those of `prediction_interval`.

    Example:
        >>> half_width = interval_half_width(model, X, level=0.8)
    """
    model.eval()
    predictive = model.calibrator.predictive(model.transform_inputs(X.unsqueeze(-2)))
    low, high = (predictive.quantile((1.0 + side * level) / 2.0) for side in (-1.0, 1.0))
    return ((high - low) / 2.0).expand(len(X), 1, 1).reshape(-1)
