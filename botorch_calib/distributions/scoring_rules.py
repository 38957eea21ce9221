r"""Scoring rules for probabilistic forecasts, and measures of their calibration.

The CRPS and the interval score of ``y`` are ``s_y`` times the scores of ``z = (y - mu) / s_y``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from scipy.stats import beta
from torch import Tensor

from botorch_calib._validation import (
    check_finite,
    check_instance,
    check_levels,
    check_open_unit,
    check_tensor,
    check_unit_interval,
    in_double,
)
from botorch_calib.distributions._normal_functions import quick_log_interval, unit_legendre
from botorch_calib.distributions.piecewise import PiecewisePredictive

# Nodes of the quadrature rule on a segment. The rule ends where a normal density has decreased by
# a factor of exp(_DEPTH / 2).
_ORDER, _DEPTH = 80, 78.0


@torch.no_grad()
def crps(predictive: PiecewisePredictive, z: Tensor) -> Tensor:
    r"""Return the continuous ranked probability score ``int (F(x) - 1{x >= z})^2 dx``.

    ``F`` is the cdf of ``predictive``. The knots of ``predictive`` and the observation ``z`` divide
    the line into segments. A Gauss-Legendre rule on each segment is exact up to rounding, or has an
    error of up to 1e-9 if all pieces are narrow. Scores have the units and the dtype of ``z``.
    Smaller scores are better.

    Args:
        predictive: Distribution of ``z``, of any batch shape.
        z: Finite observations that broadcast against ``predictive.batch_shape``.

    Example:
        >>> crps(PiecewisePredictive.gaussian(), torch.tensor(0.0))
        tensor(0.2337)
    """
    check_instance("predictive", predictive, PiecewisePredictive)
    check_finite("z", z)
    dtype, predictive = z.dtype, predictive.to(torch.float64)
    z = z.double().expand(torch.broadcast_shapes(z.shape, predictive.batch_shape))
    scale = torch.ones_like(z) if predictive.scale is None else predictive.scale
    z = (z / scale).unsqueeze(-1)
    knots = predictive.standardized().knots.expand(*z.shape[:-1], -1)
    inside = z.clamp(knots[..., :1], knots[..., -1:])
    edges = torch.cat([knots, inside], dim=-1).sort(dim=-1).values
    # Segments ``j`` from this index on are above the observation, which divides a piece. So they
    # are in piece ``j - 1``, and the segments before them in piece ``j``.
    first_above = (knots[..., 1:-1] <= inside).sum(dim=-1, keepdim=True) + 1
    segments = torch.arange(edges.shape[-1] - 1, device=z.device)
    is_above = segments >= first_above
    squares = _segments(predictive, knots, edges, segments - is_above.long(), is_above.double())
    # F is 0 below a finite first knot and 1 above a finite last knot, so an observation outside of
    # the knots adds its distance from them.
    return (scale * (squares + (z - inside).abs().squeeze(-1))).to(dtype)


def crps_of_quantiles(quantile: Callable[[Tensor], Tensor], y: Tensor, num: int = 200) -> Tensor:
    """Return the CRPS of ``n`` distributions for observations ``y``, of shape ``n``.

    With the quantiles ``q(p)``, the score is ``int_0^1 2 (1{y <= q(p)} - p) (q(p) - y) dp``,
    computed by the midpoint rule from ``num`` levels ``p``. The function ``quantile`` takes the
    vector of levels and returns the quantiles, ``num x n``.
    """
    levels = (torch.arange(num, dtype=torch.double) + 0.5) / num
    quantiles = quantile(levels).reshape(num, len(y)).double()
    p = levels.to(quantiles).unsqueeze(-1)
    return (2 * ((y <= quantiles).double() - p) * (quantiles - y)).mean(dim=0)


def interval_score(lower: Tensor, upper: Tensor, y: Tensor, alpha: float) -> Tensor:
    """Return the score of central ``1 - alpha`` intervals (Gneiting & Raftery 2007, eq. 43).

    The score is the width of the interval, plus ``2 / alpha`` times the distance of ``y`` from the
    interval. Smaller scores are better.

    Args:
        lower: Lower ends of the intervals, in the units of ``y``, broadcasting against ``y``.
        upper: Upper ends of the intervals, in the units of ``y``, broadcasting against ``y``.
        y: Observations.
        alpha: Nominal probability of a miss, in (0, 1).

    Example:
        >>> interval_score(torch.tensor(0.0), torch.tensor(1.0), torch.tensor(1.5), alpha=0.2)
        tensor(6.)
    """
    check_open_unit("alpha", alpha)
    for name, value in (("lower", lower), ("upper", upper), ("y", y)):
        check_tensor(name, value)
    if not (lower <= upper).all():
        raise InputDataError("`lower` must not exceed `upper`.")
    missed = (lower - y).clamp(min=0.0) + (y - upper).clamp(min=0.0)
    return upper - lower + 2.0 / alpha * missed


def observed_frequencies(pits: Tensor, levels: Tensor) -> Tensor:
    """Return the fraction of observations at or below their predicted quantile at each level.

    Args:
        pits: Predictive cdfs at the observations, ``F_t(y_t)``, of shape ``n``, in [0, 1].
        levels: ``M`` increasing levels in (0, 1).

    Returns:
        Fractions of shape ``M``, in float64.

    Example:
        >>> observed_frequencies(torch.tensor([0.05, 0.3, 0.8]), torch.tensor([0.1, 0.5]))
        tensor([0.3333, 0.6667], dtype=torch.float64)
    """
    check_levels("levels", levels)
    if check_tensor("pits", pits).dim() != 1:
        raise BotorchTensorDimensionError(f"`pits` must be a vector, got {tuple(pits.shape)}.")
    if pits.numel() == 0:
        raise InputDataError("`pits` is empty: there is nothing to judge.")
    check_unit_interval("pits", pits)
    return (pits.unsqueeze(-1) <= levels.to(pits)).double().mean(dim=0)


def calibration_error(pits: Tensor, levels: Tensor) -> Tensor:
    """Return ``sum_j (p_j - observed frequency_j)^2`` (Kuleshov et al. 2018, eq. 9).

    The levels are ``p_j``, and each has the weight 1. With ``n`` observations, the expected value
    for a correct model is ``sum_j p_j (1 - p_j) / n``. See `observed_frequencies` for the
    arguments.

    Example:
        >>> calibration_error(torch.tensor([0.2, 0.8]), torch.tensor([0.5]))
        tensor(0., dtype=torch.float64)
    """
    frequencies = observed_frequencies(pits, levels)
    return (levels.double() - frequencies.to(levels.device)).square().sum()


def binomial_interval(
    successes: Tensor | float, trials: Tensor | float, confidence: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return the ends of the (conservative) Clopper-Pearson interval of a success probability.

    Trials must be independent, such as hits of one-step-ahead forecasts by a correct model. For
    dependent trials the interval is only a rough guide.

    Args:
        successes: Numbers of successes, of any shape.
        trials: Numbers of trials, at least 1, that broadcast against ``successes``.
        confidence: Least probability that the interval contains the true probability, in (0, 1).

    Example:
        >>> low, high = binomial_interval(17, 20)
        >>> round(float(low), 2), round(float(high), 2)
        (0.62, 0.97)
    """
    check_open_unit("confidence", confidence)
    counts = {"successes": successes, "trials": trials}.items()
    k, n = torch.broadcast_tensors(*(in_double(*each, torch.device("cpu")) for each in counts))
    if not ((n >= 1) & (k >= 0) & (k <= n)).all():
        raise InputDataError("`successes` must lie between 0 and `trials`, which must be positive.")
    tail = (1.0 - confidence) / 2.0
    # A beta distribution needs positive parameters. With no success, the lower end is 0; with only
    # successes, the upper end is 1.
    low = torch.as_tensor(beta.ppf(tail, k.clamp(min=1.0).numpy(), (n - k + 1).numpy()))
    high = torch.as_tensor(beta.ppf(1.0 - tail, (k + 1).numpy(), (n - k).clamp(min=1.0).numpy()))
    return low.where(k > 0, torch.zeros_like(k)), high.where(k < n, torch.ones_like(k))


def _segments(
    predictive: PiecewisePredictive, knots: Tensor, edges: Tensor, pieces: Tensor, step: Tensor
) -> Tensor:
    """Return the sum of ``int (F(x) - step)^2 dx`` over segments.

    Segments are between successive ``edges``. For each segment, ``pieces`` is the index of the
    piece that contains it, and ``step`` is 0 below the observation and 1 above.
    """
    left, right = edges[..., :-1], edges[..., 1:]
    low, high = knots[..., :-1].gather(-1, pieces), knots[..., 1:].gather(-1, pieces)
    masses = predictive.masses.expand(*knots.shape[:-1], -1)
    mass, to_high = masses.gather(-1, pieces), masses.cumsum(dim=-1).gather(-1, pieces)
    at_low, at_high = to_high - mass - step, to_high - step
    # At the distance ``s`` from its densest point ``c``, the density of a normal piece has
    # decreased by a factor of ``exp(|c| s + s^2 / 2)``, which is ``exp(_DEPTH / 2)`` at the reach.
    uniform = predictive.form.is_uniform(knots.device)[pieces]
    peak = torch.zeros_like(low).clamp(low, high)
    reach = _DEPTH / (peak.abs() + (peak.square() + _DEPTH).sqrt())
    reach = reach.masked_fill(uniform, math.inf)
    start = torch.minimum(torch.maximum(left, peak - reach), right)
    stop = torch.maximum(torch.minimum(right, peak + reach), start)
    # Beyond the reach in an open piece, F - step is 0 and the distance is infinite.
    below = (start - left).masked_fill(left.isneginf(), 0.0)
    above = (right - stop).masked_fill(right.isposinf(), 0.0)
    total = at_low.square() * below + at_high.square() * above
    width, natural = stop - start, quick_log_interval(low, high)
    nodes, weights = unit_legendre(_ORDER, low.dtype, low.device)
    for node, weight in zip(nodes.unbind(), weights.unbind(), strict=True):
        x = torch.addcmul(start, width, node)
        normal = (quick_log_interval(low, x) - natural).exp_().clamp_(max=1.0)
        share = torch.where(uniform, (x - low) / (high - low), normal)
        total += weight * width * torch.addcmul(at_low, mass, share).square_()
    return total.sum(dim=-1)
