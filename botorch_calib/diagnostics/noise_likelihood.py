"""The likelihood of a multiplier of the observation noise, everything else being fixed.

With ``K`` the covariance of the objective at the training inputs, ``N`` the diagonal matrix of the
noise variances and ``r`` the targets minus their mean, ``r ~ N(0, K + m N)``. One
eigendecomposition

    ``N^{-1/2} K N^{-1/2} = U diag(lambda) U^T``,    ``s = U^T N^{-1/2} r``

makes the coordinates of ``s`` independent, with variances ``lambda_i + m``, so that for every ``m``

    ``log L(m) = -1/2 sum_i [s_i^2 / (lambda_i + m) + log(lambda_i + m)] + const``.

In ``t = log m`` each term varies on a scale of about 1 (it is analytic where ``|Im t| < pi``), so a
fine grid of ``t`` misses no local maximum.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor

from botorch_calib.models.training_prior import TrainingPrior

# Distance of the grid's points in log m.
_STEP = 0.02
# Log likelihoods that differ by less than this are taken as equal.
_TIE = 1e-9
_HALVINGS = 50


class WhitenedTargets(NamedTuple):
    """Independent coordinates of the data: normal with variances ``eigenvalues + m``."""

    eigenvalues: Tensor  # n, nonnegative
    squares: Tensor  # n, of the coordinates

    def log_likelihood(self, t: Tensor) -> Tensor:
        """``log L`` at ``t = log m`` (``k``), up to a constant."""
        total = self.eigenvalues + t.exp().unsqueeze(-1)
        return -0.5 * (self.squares / total + total.log()).sum(dim=-1)

    def slope(self, t: Tensor) -> Tensor:
        """The derivative of ``log L`` by ``t``, ``k``."""
        m = t.exp().unsqueeze(-1)
        total = self.eigenvalues + m
        # With c = lambda + m, of which dc/dt = m:  d/dt = m (s^2 - c) / (2 c^2)
        return 0.5 * (m / total * (self.squares / total - 1.0)).sum(dim=-1)


def whitened(prior: TrainingPrior) -> WhitenedTargets:
    """The observations' independent coordinates, in units of the stated noise."""
    covariance, noise, deviation = _given_exact(prior)
    weights = noise.rsqrt()
    matrix, targets = weights.unsqueeze(-1) * covariance * weights, weights * deviation
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    return WhitenedTargets(eigenvalues.clamp(min=0.0), (vectors.mT @ targets).square())


def _given_exact(prior: TrainingPrior) -> tuple[Tensor, Tensor, Tensor]:
    """Covariance, noise and deviation of noisy observations given those without noise.

    The likelihood of the latter does not depend on ``m``.
    """
    covariance, noise, deviation = prior.covariance, prior.noise, prior.deviation
    noisy = noise > 0.0
    if bool(noisy.all()):
        return covariance, noise, deviation
    factor = psd_safe_cholesky(covariance[~noisy][:, ~noisy])
    known = torch.cat([covariance[~noisy][:, noisy], deviation[~noisy].unsqueeze(-1)], dim=-1)
    solved = torch.linalg.solve_triangular(factor, known, upper=False)
    cross, values = solved[:, :-1], solved[:, -1]
    remaining = covariance[noisy][:, noisy] - cross.mT @ cross
    return remaining, noise[noisy], deviation[noisy] - cross.mT @ values


class SupportedMultipliers(NamedTuple):
    """Multipliers that the data support, and the likelihood of all that were looked at."""

    best: float
    low: float
    high: float
    log_multipliers: Tensor  # k, increasing
    log_likelihoods: Tensor  # k, relative to the greatest


def supported_multipliers(data: WhitenedTargets, level: float) -> SupportedMultipliers:
    """The multiplier of the greatest likelihood, and the interval of those not rejected."""
    # Half the quantile of chi-square, the square of a normal one.
    tail = torch.tensor((1.0 - level) / 2.0, dtype=torch.double)
    drop = 0.5 * float(torch.special.ndtri(tail)) ** 2
    grid = _grid(data, drop)
    points = torch.cat([grid, _local_maxima(data, grid)]).sort().values
    values = data.log_likelihood(points)
    best = int(values.argmax())
    if values[best] - values[0] <= _TIE:  # where the likelihood is flat, down to no noise
        best = 0
    threshold = values[best] - drop
    inside = (values >= threshold).nonzero().flatten()
    first, last = int(inside[0]), int(inside[-1])
    # The first point stands for all below it. The last is outside, by the choice of the grid.
    return SupportedMultipliers(
        best=0.0 if best == 0 else float(points[best].exp()),
        low=0.0 if first == 0 else _crossing(data, points, first, first - 1, threshold),
        high=_crossing(data, points, last, last + 1, threshold),
        log_multipliers=points,
        log_likelihoods=values - values[best],
    )


def _grid(data: WhitenedTargets, drop: float) -> Tensor:
    """Values of ``log m`` from the least that can be resolved to one that is surely rejected."""
    eigenvalues, squares = data
    # Eigenvalues are known up to rounding relative to the greatest; m beside them no better.
    smallest = eigenvalues.max().clamp(min=1e-200) * torch.finfo(eigenvalues.dtype).eps
    start = torch.maximum(squares.mean(), smallest).log().reshape(1)
    # log L(m) <= -n/2 log m, since eigenvalues are nonnegative; this bound falls below the
    # threshold, which is at least log L(start) - drop.
    reached = float(data.log_likelihood(start)) - drop
    high = -2.0 / len(squares) * reached + _STEP
    low = float(smallest.log())
    count = math.ceil((high - low) / _STEP) + 1
    return torch.linspace(low, high, count, dtype=start.dtype, device=start.device)


def _local_maxima(data: WhitenedTargets, grid: Tensor) -> Tensor:
    """Points between those of the grid at which the likelihood has a local maximum."""
    slopes = data.slope(grid)
    at = ((slopes[:-1] > 0.0) & (slopes[1:] <= 0.0)).nonzero().flatten()
    return _bisected(data.slope, grid[at], grid[at + 1])


def _crossing(
    data: WhitenedTargets, points: Tensor, inside: int, outside: int, threshold: Tensor
) -> float:
    """The multiplier between two neighbouring points at which ``log L`` is ``threshold``."""
    ends = points[[inside]], points[[outside]]
    return float(_bisected(lambda t: data.log_likelihood(t) - threshold, *ends).exp())


def _bisected(function: Callable[[Tensor], Tensor], positive: Tensor, negative: Tensor) -> Tensor:
    """Roots ``k`` of a function between neighbouring points of the grid, to rounding."""
    for _ in range(_HALVINGS):
        middle = 0.5 * (positive + negative)
        is_positive = function(middle) > 0.0
        positive = torch.where(is_positive, middle, positive)
        negative = torch.where(is_positive, negative, middle)
    return 0.5 * (positive + negative)
