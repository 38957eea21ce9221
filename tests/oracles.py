"""Slow and simple references: quadrature of a piecewise distribution against Gaussian noise.

The references do not use the package's formulas. They read a distribution from its public
attributes (knots, masses, flags, scale), and use the same quadrature to normalise each piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, logsumexp

from botorch_calib.distributions.piecewise import PiecewisePredictive

Array = NDArray[np.float64]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(24)
# Distances from each center at which panels end. They differ by factors of 2, so that some panels
# resolve the integrand at any scale.
_DISTANCES = 2.0 ** np.arange(-44, 13)


@dataclass(frozen=True)
class Pieces:
    """One piecewise distribution, as plain numbers."""

    knots: list[float]
    masses: list[float]
    uniform: tuple[bool, ...]
    scale: float = 1.0


def unbatched(predictive: PiecewisePredictive) -> list[Pieces]:
    """The distributions of a batch, in its flattened order."""
    shape, num = predictive.batch_shape, predictive.form.num_pieces
    knots = predictive.knots.detach().expand(*shape, num + 1).reshape(-1, num + 1).tolist()
    masses = predictive.masses.detach().expand(*shape, num).reshape(-1, num).tolist()
    scales = [1.0] * len(knots)
    if predictive.scale is not None:
        scales = predictive.scale.detach().expand(shape).reshape(-1).tolist()
    rows = zip(knots, masses, scales, strict=True)
    return [Pieces(k, m, predictive.uniform, s) for k, m, s in rows]


def log_h(t: Array) -> Array:
    """``log(phi(t) + t Phi(t))``, which tests of normal functions compare with mpmath."""
    low = np.minimum(t, -1e-30)
    mills = np.sqrt(np.pi / 2) * erfcx(-low / np.sqrt(2))
    y = 1 / np.square(np.minimum(low, -25.0))
    series = y * (1 - y * (3 - y * (15 - y * (105 - y * (945 - 10395 * y)))))
    left = -0.5 * low**2 - 0.5 * math.log(2 * math.pi)
    left = left + np.log(np.where(low < -25.0, series, 1 + np.maximum(low, -25.0) * mills))
    right = np.maximum(t, 0.0)
    density = np.exp(-0.5 * right**2) / math.sqrt(2 * math.pi)
    return np.where(t < 0, left, np.log(density + right * np.exp(log_ndtr(right))))


def log_phi(t: Array) -> Array:
    return -0.5 * t**2 - 0.5 * math.log(2 * math.pi)


def _panels(pieces: Pieces, ratio: float, x: float) -> Iterator[tuple[Array, Array]]:
    """Nodes and log masses of each piece, on panels graded towards every special point."""
    tau2 = pieces.scale**2
    finite = [k for k in pieces.knots if math.isfinite(k)]
    centers = np.array([*finite, x, x * tau2 / (tau2 + ratio**2), 0.0])
    grid = np.concatenate([centers, *(centers + s * d for d in _DISTANCES for s in (1, -1))])
    limit = 45.0 * pieces.scale + max([abs(k) for k in finite], default=0.0)
    for j, (mass, flat) in enumerate(zip(pieces.masses, pieces.uniform, strict=True)):
        if mass == 0.0:
            continue
        low, high = max(pieces.knots[j], -limit), min(pieces.knots[j + 1], limit)
        ends = np.unique(np.clip(grid, low, high))
        half = np.diff(ends) / 2
        z = ((ends[:-1] + half)[:, None] + half[:, None] * _NODES).ravel()
        log_mass = np.log(half[:, None] * _WEIGHTS).ravel()
        if not flat:
            log_mass = log_mass - 0.5 * (z / pieces.scale) ** 2
        yield z, log_mass - logsumexp(log_mass) + math.log(mass)


@dataclass(frozen=True)
class Smoothed:
    """All quantities of the distribution of ``z + ratio eps`` at a number ``x``."""

    log_excess: float
    log_survival: float
    log_cdf: float
    log_prob: float
    mean: float
    variance: float


def smoothed(pieces: Pieces, ratio: float, x: float) -> Smoothed:
    """Quadrature over ``z``, relative error about 1e-13."""
    panels = list(_panels(pieces, ratio, x))
    z = np.concatenate([panel[0] for panel in panels])
    log_mass = np.concatenate([panel[1] for panel in panels])
    t = (z - x) / ratio
    mass = np.exp(log_mass)
    mean = float(np.sum(mass * z))
    return Smoothed(
        log_excess=float(logsumexp(log_mass + log_h(t))) + math.log(ratio),
        log_survival=float(logsumexp(log_mass + log_ndtr(t))),
        log_cdf=float(logsumexp(log_mass + log_ndtr(-t))),
        log_prob=float(logsumexp(log_mass + log_phi(t))) - math.log(ratio),
        mean=mean,
        variance=float(np.sum(mass * (z - mean) ** 2)) + ratio**2,
    )


def mean_below(pieces: Pieces, ratio: float, x: float) -> float:
    """``E[z + ratio eps | z + ratio eps <= x]``; without noise at a ratio of 0."""
    panels = list(_panels(pieces, ratio or 1.0, x))
    z = np.concatenate([panel[0] for panel in panels])
    log_mass = np.concatenate([panel[1] for panel in panels])
    if ratio == 0.0:
        log_below, rise = np.where(z <= x, log_mass, -np.inf), 0.0
    else:
        t = (x - z) / ratio
        # For a normal variable with mean z: minus the ratio of its density to its cdf.
        log_below, rise = log_mass + log_ndtr(t), -ratio * np.exp(log_phi(t) - log_ndtr(t))
    weight = np.exp(log_below - logsumexp(log_below))
    return float(np.sum(weight * (z + rise)))


def log_tail(pieces: Pieces, x: float) -> tuple[float, float]:
    """``log E(z - x)+`` and ``log P(z > x)`` without noise, ``-inf`` for zero."""
    panels = list(_panels(pieces, 1.0, x))
    z = np.concatenate([panel[0] for panel in panels])
    log_mass = np.concatenate([panel[1] for panel in panels])[z > x]
    if not len(log_mass):
        return -math.inf, -math.inf
    log_rise = np.log(z[z > x] - x)
    return float(logsumexp(log_mass + log_rise)), float(logsumexp(log_mass))


def cdf(pieces: Pieces, x: float) -> float:
    """``P(Z <= x)``, by summing the panels left of ``x``."""
    parts = [np.exp(log_mass[z <= x]).sum() for z, log_mass in _panels(pieces, 1.0, x)]
    return float(sum(parts))


def log_density(pieces: Pieces, x: float) -> float:
    """Log density at ``x``, from the mass of a narrow symmetric interval."""
    j = int(np.searchsorted(pieces.knots, x)) - 1
    low, high = pieces.knots[j], pieces.knots[j + 1]
    width = 1e-4 * min(1.0, x - low, high - x, pieces.scale / (1 + abs(x)))
    return math.log((cdf(pieces, x + width) - cdf(pieces, x - width)) / (2 * width))


def exponential_excess(pieces: Pieces, ratio: float, x: float, slope: float) -> float:
    """``log E(exp(slope (z + ratio eps)) - exp(slope x))+``; ``x`` may be minus infinity.

    Given ``z`` this is the price of a call option on a log-normal number [Black and Scholes 1973].
    """
    at = x if math.isfinite(x) else 0.0
    panels = list(_panels(pieces, ratio or 1.0, at))
    z = np.concatenate([panel[0] for panel in panels])
    log_mass = np.concatenate([panel[1] for panel in panels])
    forward = slope * z + 0.5 * (slope * ratio) ** 2
    if not math.isfinite(x):
        return float(logsumexp(log_mass + forward))
    if ratio == 0.0:
        rise = np.expm1(slope * (z[z > x] - x))
        return float(logsumexp(log_mass[z > x] + slope * x + np.log(rise)))
    d = (z - x) / ratio
    gained, paid = forward + log_ndtr(d + slope * ratio), slope * x + log_ndtr(d)
    share = -np.expm1(np.minimum(paid - gained, -1e-300))
    return float(logsumexp(log_mass + gained + np.log(share)))
