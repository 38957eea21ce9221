r"""Scores of probabilistic forecasts, from distributions, quantiles, PITs and observations.

Nothing here knows a model. A distribution of ``z = (y - mu) / s_y`` is scored at ``z``; the CRPS
and the interval score of ``y`` itself are ``s_y`` times those of ``z``.
"""

from __future__ import annotations

import math

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from botorch.utils.probability.utils import log_ndtr, log_phi, ndtr
from scipy.stats import beta
from torch import Tensor

from botorch_calib._validation import (
    check_finite,
    check_levels,
    check_open_unit,
    check_unit_interval,
)
from botorch_calib.distributions._normal_functions import (
    LOG_ZERO,
    log_h,
    log_normal_interval,
    ramp_ratio,
    unit_legendre,
)
from botorch_calib.distributions.piecewise import PiecewisePredictive

_SQRT_2 = math.sqrt(2.0)
_SQRT_PI = math.sqrt(math.pi)
# Up to this change of its log density a normal piece is integrated by a rule with this many
# nodes, which is then exact to rounding; beyond it the antiderivatives, which grow by a factor of
# exp(6) over the piece, cancel little.
_SHORT, _ORDER = 6.0, 24


@torch.no_grad()
def crps(predictive: PiecewisePredictive, z: Tensor) -> Tensor:
    r"""Continuous ranked probability score ``int (F(x) - 1{x >= z})^2 dx``.

    In closed form. The integral is that of ``F^2`` below ``z`` plus that of the mirrored
    distribution's below ``-z``, so it is a sum of positive terms: on a piece that starts at ``l``
    with probability ``P`` below it, ``F = P + m G`` and

        ``int F^2 = P^2 (x - l) + 2 P m int G + m^2 int G^2``.

    ``G`` is linear on a uniform piece. On a normal one it is affine in ``Phi``, of which
    ``int Phi = h`` and ``int Phi^2 = x Phi^2 + 2 phi Phi - Phi(sqrt(2) x) / sqrt(pi)``. These are
    taken relative to the mass of the piece, in logarithms and from the end nearer to
    zero, so that far-out pieces keep their digits; where they would cancel, since the
    piece is short, a Gauss-Legendre rule replaces them.

    Args:
        predictive: Distribution of ``z``, of any batch shape.
        z: Observations that broadcast against ``predictive.batch_shape``.

    Returns:
        Scores of the common shape, in units of ``z`` and its dtype; smaller is better.

    Raises:
        InputDataError: If ``z`` holds NaN or infinite values.
    """
    check_finite("z", z)
    dtype, predictive, z = z.dtype, predictive.to(torch.float64), z.double()
    below, above = _square_below(predictive, z), _square_below(predictive.mirrored(), -z)
    return (below + above).to(dtype)


def interval_score(lower: Tensor, upper: Tensor, y: Tensor, alpha: float) -> Tensor:
    """Score of central ``1 - alpha`` prediction intervals (Gneiting & Raftery 2007, eq. 43).

    The width plus ``2 / alpha`` times the distance by which ``y`` is missed.

    Args:
        lower: Lower ends, in the units of ``y``.
        upper: Upper ends; both broadcast against ``y``.
        y: Observations.
        alpha: Stated probability of a miss, in (0, 1).

    Returns:
        Scores of the common shape, in the units of ``y``; smaller is better.

    Raises:
        InputDataError: If ``alpha`` is outside (0, 1) or an upper end is below its lower end.
    """
    check_open_unit("alpha", alpha)
    if not (lower <= upper).all():
        raise InputDataError("`lower` must not exceed `upper`.")
    missed = (lower - y).clamp(min=0.0) + (y - upper).clamp(min=0.0)
    return upper - lower + 2.0 / alpha * missed


def observed_frequencies(pits: Tensor, levels: Tensor) -> Tensor:
    """Fraction of observations at or below their stated quantile, for each level.

    Args:
        pits: Probability integral transforms ``F_t(y_t)``, of shape ``n``, in [0, 1].
        levels: ``M`` increasing levels in (0, 1).

    Returns:
        Frequencies of shape ``M``, in double precision.

    Raises:
        InputDataError: If there are no PITs or one lies outside [0, 1].
    """
    check_levels("levels", levels)
    if pits.dim() != 1:
        raise BotorchTensorDimensionError(f"`pits` must be a vector, got {tuple(pits.shape)}.")
    if pits.numel() == 0:
        raise InputDataError("`pits` is empty: there is nothing to judge.")
    check_unit_interval("pits", pits)
    return (pits.unsqueeze(-1) <= levels.to(pits)).double().mean(dim=0)


def calibration_error(pits: Tensor, levels: Tensor) -> Tensor:
    """``sum_j (p_j - observed frequency_j)^2`` (Kuleshov et al. 2018, eq. 9, equal weights).

    Args:
        pits: Probability integral transforms, of shape ``n``, in [0, 1].
        levels: ``M`` increasing levels ``p_j`` in (0, 1).

    Returns:
        A number, in double precision; 0 is best. With ``n`` observations a correct model
        has the expectation ``sum_j p_j (1 - p_j) / n``.
    """
    return (levels.double() - observed_frequencies(pits, levels).to(levels.device)).square().sum()


def binomial_interval(
    successes: Tensor | int, trials: Tensor | int, confidence: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Clopper and Pearson's interval of a success probability: exact, hence conservative.

    It assumes independent trials. Those of a sequence of forecasts are so under a correct
    model, one step ahead; elsewhere the interval is a yardstick.

    Args:
        successes: Counts, of any shape.
        trials: Numbers of trials, at least 1, that broadcast against ``successes``.
        confidence: Probability that the interval holds the true one, at least; in (0, 1).

    Returns:
        Lower and upper ends, in double precision, on the CPU.

    Raises:
        InputDataError: If a count is not between 0 and its number of trials, or that is 0.
    """
    check_open_unit("confidence", confidence)
    k, n = torch.broadcast_tensors(
        torch.as_tensor(successes).double().cpu(), torch.as_tensor(trials).double().cpu()
    )
    if not ((n >= 1) & (k >= 0) & (k <= n)).all():
        raise InputDataError("`successes` must lie between 0 and `trials`, which must be positive.")
    tail = (1.0 - confidence) / 2.0
    # A beta distribution needs positive parameters; where one would be 0, the end is known.
    low = torch.as_tensor(beta.ppf(tail, k.clamp(min=1.0).numpy(), (n - k + 1).numpy()))
    high = torch.as_tensor(beta.ppf(1.0 - tail, (k + 1).numpy(), (n - k).clamp(min=1.0).numpy()))
    return low.where(k > 0, torch.zeros_like(k)), high.where(k < n, torch.ones_like(k))


# ------------------------------------------------------------ the integral of F^2


def _square_below(predictive: PiecewisePredictive, z: Tensor) -> Tensor:
    """``int F(x)^2 dx`` over all ``x`` below ``z``."""
    scale = torch.ones_like(z) if predictive.scale is None else predictive.scale
    x, knots = (z / scale).unsqueeze(-1), predictive.standard_knots
    low, high = knots[..., :-1], knots[..., 1:]
    x, low, high = torch.broadcast_tensors(x, low, high)
    end = torch.minimum(torch.maximum(x, low), high)
    once, twice = _piece_integrals(low, high, end, predictive.form.is_uniform(x.device))
    below = predictive.masses.cumsum(dim=-1) - predictive.masses
    # Below an open first piece there is nothing, over an infinite distance.
    distance = (end - low).masked_fill(low.isneginf(), 0.0)
    parts = below.square() * distance + 2 * below * predictive.masses * once
    inside = (parts + predictive.masses.square() * twice).sum(dim=-1)
    # Beyond a finite last knot F = 1.
    return scale * (inside + (x - high)[..., -1].clamp(min=0.0))


def _piece_integrals(
    low: Tensor, high: Tensor, end: Tensor, uniform: Tensor
) -> tuple[Tensor, Tensor]:
    """``int G`` and ``int G^2`` from ``low`` to ``end``, ``G`` that of one piece alone."""
    distance = end - low
    flat_width = (high - low).masked_fill(~uniform, 1.0)
    part = distance.masked_fill(~uniform, 0.0) / flat_width
    flat = flat_width * part.square() / 2, flat_width * part**3 / 3
    # The log density of a normal piece changes by at most |x| times the distance.
    rate = torch.maximum(low.abs(), end.abs()).clamp(min=1.0)
    short = ~uniform & (distance * rate <= _SHORT)
    log_mass = log_normal_interval(low, high)
    rule = _by_rule(low, end, log_mass, short)
    exact = _by_antiderivatives(low, high, end, log_mass, ~uniform & ~short)
    both = (torch.where(short, a, b) for a, b in zip(rule, exact, strict=True))
    once, twice = (torch.where(uniform, a, b) for a, b in zip(flat, both, strict=True))
    return once, twice


def _by_rule(low: Tensor, end: Tensor, log_mass: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The integrals of the chosen normal pieces, by Gauss and Legendre's rule; others 0."""
    once, twice = torch.zeros_like(end), torch.zeros_like(end)
    low, end, log_mass = low[chosen], end[chosen], log_mass[chosen]
    nodes, weights = unit_legendre(_ORDER, end.dtype, end.device)
    width = (end - low).unsqueeze(-1)
    start = low.unsqueeze(-1)
    log_share = log_normal_interval(start, start + width * nodes)
    share = (log_share - log_mass.unsqueeze(-1)).exp().clamp(max=1.0)
    once[chosen] = (width * weights * share).sum(dim=-1)
    twice[chosen] = (width * weights * share.square()).sum(dim=-1)
    return once, twice


def _by_antiderivatives(
    low: Tensor, high: Tensor, end: Tensor, log_mass: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """The integrals of the chosen normal pieces, in closed form; others 0.

    The integration runs from ``-|.|`` towards zero: where ``[low, end]`` lies on the upper side,
    ``G = 1 - S`` is replaced by the mirrored ``S``, which is small where ``G`` is near 1.
    """
    once, twice = torch.zeros_like(end), torch.zeros_like(end)
    low, high, end, log_mass = low[chosen], high[chosen], end[chosen], log_mass[chosen]
    flip = low + end > 0
    base = torch.where(flip, -high, low)
    first, last = torch.where(flip, -end, low), torch.where(flip, -low, end)
    # Phi at the far end of the piece, which is subtracted throughout
    offset = (_log_normal(base) - log_mass).exp()
    length = (last - first).masked_fill(first.isneginf(), 0.0)
    h_part = (_log_h(last) - log_mass).exp() - (_log_h(first) - log_mass).exp()
    k_part = (_log_k(last) - 2 * log_mass).exp() - (_log_k(first) - 2 * log_mass).exp()
    share = h_part - offset * length
    square = k_part - 2 * offset * h_part + offset.square() * length
    once[chosen] = torch.where(flip, length - share, share)
    twice[chosen] = torch.where(flip, length - 2 * share + square, square)
    return once, twice


def _log_normal(x: Tensor) -> Tensor:
    """``log Phi(x)``, also at ``-inf``."""
    return log_ndtr(x.masked_fill(x.isneginf(), 0.0)).masked_fill(x.isneginf(), LOG_ZERO)


def _log_h(x: Tensor) -> Tensor:
    """Logarithm of ``int_{-inf}^x Phi``, also at ``-inf``."""
    return log_h(x.masked_fill(x.isneginf(), 0.0)).masked_fill(x.isneginf(), LOG_ZERO)


def _log_k(x: Tensor) -> Tensor:
    r"""Logarithm of ``K(x) = int_{-inf}^x Phi^2``, also at ``-inf``.

    Below -1 it is ``phi(x)^2 (d(sqrt(2) |x|) - d(|x|)^2) / |x|`` with ``d(t) = h(-t) / phi(t)``,
    the three terms of the antiderivative with their leading parts cancelled by hand:
    ``x Phi^2 + 2 phi Phi`` is ``(phi^2 - h^2) / |x|`` there, with ``Phi = (phi - h) / |x|``, and
    ``Phi(sqrt(2) x) / sqrt(pi) = (phi^2 - phi(x)^2 d(sqrt(2) |x|)) / |x|`` takes ``phi^2`` off.
    """
    finite = x.masked_fill(x.isneginf(), 0.0)
    near = finite.clamp(min=-1.0)
    direct = near * ndtr(near).square() + 2 * log_phi(near).exp() * ndtr(near)
    direct = direct - ndtr(_SQRT_2 * near) / _SQRT_PI
    far = -finite.clamp(max=-1.0)
    ratio = (ramp_ratio(_SQRT_2 * far) - ramp_ratio(far).square()) / far
    value = torch.where(finite < -1.0, ratio.log() + 2 * log_phi(far), direct.log())
    return value.masked_fill(x.isneginf(), LOG_ZERO)
