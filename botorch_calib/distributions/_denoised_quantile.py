r"""Quantiles of a piecewise distribution smoothed by Gaussian noise.

Let ``z`` have a piecewise distribution, and let ``r eps`` be noise with the standard deviation
``r``. The ``tail`` quantile is the point ``x`` with ``P(z + r eps > x) = tail``. The equation is
solved in normal scores, ``g(x) = zeta`` with ``g(x) = Phi^-1(P(z + r eps <= x))`` and ``zeta =
-Phi^-1(tail)``. The score ``g`` is nearly linear in ``x``, and exactly linear if ``z`` is normal.

*Guess.* Write ``z + r eps = T(u) + r eps``, with independent standard normal ``u`` and ``eps``, and
``T`` the monotone map from the standard normal to the distribution of ``z``. If ``T`` were linear,
the region ``T(u) + r eps >= x`` at the solution ``x`` would have the distance ``zeta`` from the
origin (the first-order reliability method). The guess is the largest value of ``T(u) + r eps`` at
this distance, ``max_w T(zeta sin w) + r zeta cos w``. The guess is exact for normal ``z``, for ``r
-> 0`` and for ``r -> infinity``. In all tests, the score ``g`` of the guess differed from ``zeta``
by less than 0.5.

*Steps.* With ``p`` the density of ``z + r eps``, the score has the slope ``g' = p / phi(g)``. With
``l = log p``, the logarithm of this slope has the derivative ``g'' / g' = l' + g g'``. Since one
computation gives the value and both derivatives, the equation is solved by Halley's method
(`bracketed_root`).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from botorch.utils.probability.utils import log_phi
from torch import Tensor

from botorch_calib._roots import bracketed_root, with_derivatives
from botorch_calib.distributions import _denoised_integrals as integrals
from botorch_calib.distributions._bivariate_tails import off_zero
from botorch_calib.distributions._normal_functions import TINY, cached_constant, upper_score
from botorch_calib.distributions._piece_integrals import log_integrals_by_pieces
from botorch_calib.distributions.form import Pieces
from botorch_calib.distributions.piecewise import PiecewisePredictive

# Number of angles ``w`` in [0, pi/2], both ends included, at which candidates are compared
_NUM_ANGLES = 5
# Number of steps on a GPU, where the search cannot stop early without reading values back. Most
# roots need three steps; next to a piece of almost no mass, where the score is steep, some need
# many bisections.
_NUM_STEPS = 10
_DEEPEST = -700.0  # lower limit of log probabilities, at a normal score of about -37
_BELOW_ONE = 1 - 1e-9
_NUM_CELLS, _NUM_NODES = 80, 12
_LOW = math.log(integrals.MIN_RATIO)
_WIDTH = (math.log(integrals.MAX_RATIO) - _LOW) / _NUM_CELLS
# Largest error of a table, divided by 1 + r, at which it counts as exact. Typical errors are
# 1e-13, unless knots almost coincide.
_TOLERANCE = 1e-9


@cached_constant
def _directions(device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the factors of ``zeta`` and ``u`` in `_starts`, ``2 x 7 x 1`` each.

    The first row of both results is for the argument of ``T``, and the second row for ``eps``.
    """
    angles = [0.5 * math.pi * i / (_NUM_ANGLES - 1) for i in range(_NUM_ANGLES)]
    by_zeta = [[*map(f, angles), 0.0, 0.0] for f in (math.sin, math.cos)]
    by_u = [[0.0] * _NUM_ANGLES + [-1.0, 1.0]] * 2
    both = torch.tensor([by_zeta, by_u], dtype=torch.float64, device=device)
    return both[0].unsqueeze(-1), both[1].unsqueeze(-1)


@torch.no_grad()
def _starts(
    standard: PiecewisePredictive, r: Tensor, shape: torch.Size, tail: float | Tensor
) -> Tensor:
    """Return five candidates for the guess, the lower and the upper end of a bracket, ``7 x n``.

    With ``u = -Phi^-1(tail / 2)``, the upper end is ``T(u) + r u``, since ``P(z + r eps > T(u) + r
    u) <= P(z > T(u)) + P(eps > u) = tail``. In the same way, ``T(-u) - r u`` is a lower end.
    """
    by_zeta, by_u = _directions(r.device)
    u, eps = by_zeta * upper_score(tail) + by_u * upper_score(tail / 2)
    lead = shape if isinstance(tail, Tensor) else [1] * len(shape)
    z = standard.transport(u.view(len(u), *lead))
    if standard.batch_shape.numel() > 1:
        z = z.expand(len(u), *shape)
    return torch.addcmul(z.reshape(len(u), z[0].numel()), eps, r)


def denoised_quantile(
    standard: PiecewisePredictive, r: Tensor, shape: torch.Size, tail: float | Tensor
) -> Tensor:
    """Return the ``n`` points ``x`` with ``P(z + r eps > x) = tail``; they are differentiable.

    Args:
        standard: Distribution of ``z`` with scale 1, but not a single normal piece without bounds.
        r: Positive ratios of the noise to the scale, ``n``, float64.
        shape: Batch shape, with ``n`` elements.
        tail: Probabilities in (0, 1/2]: one number, or a tensor of shape ``n``.
    """
    pieces, points = integrals.pieces_of(standard, shape), _starts(standard, r, shape, tail)
    off_corner = pieces._replace(knots=off_zero(pieces.knots))
    parts = integrals.parts_of(off_corner)
    zeta = upper_score(tail)
    log_tail = tail.log() if isinstance(tail, Tensor) else math.log(tail)

    def excess_score(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        log_above, log_p, log_slope = _survival(x, r, off_corner, parts)
        g = -torch.special.ndtri(log_above.clamp(min=_DEEPEST).exp().clamp(max=_BELOW_ONE))
        rate = torch.exp(log_p - log_phi(g))
        return g - zeta, rate, torch.addcmul(log_slope, g, rate)

    def excess(x: Tensor, r: Tensor, knots: Tensor, masses: Tensor) -> Tensor:
        return integrals.log_survival(x, r, Pieces(knots, masses, pieces.form), parts) - log_tail

    guess = points[:-2].amax(dim=0)
    root = bracketed_root(excess_score, guess, points[-2], points[-1], _NUM_STEPS)
    return with_derivatives(excess, root, r, pieces.knots, pieces.masses)


@torch.no_grad()
def _survival(
    x: Tensor, r: Tensor, pieces: Pieces, parts: integrals.Parts
) -> tuple[Tensor, Tensor, Tensor]:
    """Return ``log P(z + r eps > x)``, the log density and its slope in ``x``, each ``n``."""
    if pieces.form.covered:
        values = integrals.Values(x, r, pieces, parts)
        log_scale, normal = values.log_scale, values.normal_density
        tail, density = values.totals[1], values.density
    else:
        _, log_s = log_integrals_by_pieces(x, r, pieces)
        log_p = integrals.log_densities(x, r, pieces) + pieces.masses.clamp(min=TINY).log()
        log_scale = torch.maximum(log_s, log_p.amax(dim=0))
        each = (log_p - log_scale).exp()
        tail, density = (log_s - log_scale).exp(), each.sum(dim=0)
        normal = (each * pieces.form.is_normal(x.device)).sum(dim=0)
    density = density.clamp(min=TINY)
    slope = integrals.density_slope(x, r, pieces.knots, parts, normal, log_scale).div_(density)
    return tail.clamp(min=TINY).log().add_(log_scale), density.log().add_(log_scale), slope


class RatioTable:
    """A differentiable table of a function of ``r``, with a polynomial in ``log r`` on each cell.

    ``function`` maps ``n`` noise ratios ``r`` to ``n`` quantiles. Noise makes quantiles analytic
    functions of ``log r``. Polynomials through 12 Chebyshev nodes are exact up to rounding, unless
    two knots almost coincide. ``is_exact`` is True if the polynomials agree with the function to
    `_TOLERANCE` at three points of each cell.
    """

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        counts = torch.arange(_NUM_CELLS, dtype=torch.float64, device=torch.device("cpu"))
        nodes = -((counts[:_NUM_NODES] + 0.5) * (math.pi / _NUM_NODES)).cos()
        checked = nodes.new_tensor([-1.0, 0.0, 1.0])  # both ends and the middle of a cell
        places = torch.cat([checked, nodes])
        r = (_LOW + _WIDTH * (counts.unsqueeze(-1) + 0.5 * (places + 1.0))).exp()
        values = function(r.flatten()).view_as(r)
        self._coefficients = torch.linalg.solve(
            torch.linalg.vander(nodes), values[:, len(checked) :].T
        )
        error = (self(r.flatten()).view_as(r) - values).abs()
        self.is_exact = bool((error <= _TOLERANCE * (1.0 + r)).all())

    def __call__(self, r: Tensor) -> Tensor:
        """Return the values at ``n`` ratios between `MIN_RATIO` and `MAX_RATIO`."""
        place = (r.log() - _LOW) / _WIDTH
        cell = place.detach().long().clamp(0, _NUM_CELLS - 1)  # a valid index even for NaN
        place = 2.0 * (place - cell) - 1.0
        *rest, value = self._coefficients.index_select(1, cell)
        for row in reversed(rest):
            value = torch.addcmul(row, value, place)
        return value
