"""`report_from_pits` and `report_from_moments`: reports of predictions of any library."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from botorch.exceptions import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from botorch_calib._validation import check_array, check_open_unit, check_unit_interval
from botorch_calib.diagnostics.report import LEVELS, CalibrationReport, Forecasts, report_of
from botorch_calib.diagnostics.report_scores import StatedForecasts


@torch.no_grad()
def report_from_pits(
    pits: Any,
    *,
    alpha: float = 0.2,
    levels: Tensor | Sequence[float] = LEVELS,
    X: Any = None,
    num_regions: int = 4,
    bounds: Tensor | None = None,
) -> CalibrationReport:
    """Judge predictive distributions of any library, by their PITs alone.

    Widths and the scores that depend on them are not known, and left out.

    Args:
        pits: Stated probabilities of a value below the observed one, ``n``, in [0, 1], in time
            order: a tensor, an array or a list.
        alpha: The central ``1 - alpha`` interval is judged, in (0, 1).
        levels: ``M`` increasing quantile levels in (0, 1).
        X: The inputs, ``n x d``, if coverage is to be counted in cells of these.
        num_regions: Number of cells.
        bounds: ``2 x d``: a box, known beforehand, whose halves the report's alarm tells apart.

    Warns:
        CalibrationWarning: If there are fewer than ``1 / alpha`` observations.

    Example:
        >>> report = report_from_pits([0.69, 0.07, 0.69, 1.0, 0.5, 0.31])
    """
    check_open_unit("alpha", alpha)
    values = check_unit_interval("pits", _vector("pits", pits))
    stated = [StatedForecasts.of_pits(values, alpha)]
    forecasts = Forecasts(_inputs(X, len(values)), stated, base_name="stated")
    return report_of(forecasts, alpha, levels, "given", num_regions, bounds=bounds)


@torch.no_grad()
def report_from_moments(
    mean: Any,
    deviation: Any,
    observed: Any,
    *,
    alpha: float = 0.2,
    levels: Tensor | Sequence[float] = LEVELS,
    X: Any = None,
    num_regions: int = 4,
    bounds: Tensor | None = None,
) -> CalibrationReport:
    """Judge normal predictive distributions of any library.

    ``mean`` and ``deviation`` are their means and standard deviations, noise included, and
    ``observed`` the observations, which no prediction has seen: ``n`` each, in units of the outcome
    and in time order, as tensors, arrays or lists. For further arguments see `report_from_pits`.

    Example:
        >>> mean, deviation = torch.zeros(20), torch.full((20,), 0.2)
        >>> report = report_from_moments(mean, deviation, observed=0.2 * torch.randn(20))
    """
    check_open_unit("alpha", alpha)
    observed = _vector("observed", observed)
    mean, deviation = (
        _vector("mean", mean, len(observed)),
        _vector("deviation", deviation, len(observed)),
    )
    if not (deviation > 0.0).all():
        raise InputDataError("`deviation` must be positive.")
    residuals = (observed - mean) / deviation
    stated = [StatedForecasts.of_residuals(None, residuals, deviation, alpha)]
    forecasts = Forecasts(_inputs(X, len(mean)), stated, base_name="stated")
    return report_of(forecasts, alpha, levels, "given", num_regions, bounds=bounds)


def _vector(name: str, values: Any, num: int | None = None) -> Tensor:
    """At least one finite number in any container, as a vector in double precision."""
    vector = check_array(name, values, (num,))
    if not len(vector):
        raise BotorchTensorDimensionError(f"`{name}` must hold at least one number.")
    return torch.from_numpy(vector)


def _inputs(X: Any, num: int) -> Tensor | None:
    return None if X is None else torch.from_numpy(check_array("X", X, (num, None)))
