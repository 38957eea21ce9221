r"""`SmoothedPredictive`: a piecewise law convolved with Gaussian noise.

Denoising [Kim2024locbo, eq. 30] turns the calibrated law of an observation ``y`` into one
of the objective, ``f~ ~ int N(f; mu + a (y - mu), s^2) p(y) dy``. With ``z = (y - mu)/sigma_y``
and ``b = a sigma_y`` this is the law of ``mu + b (z + r eps)``, ``eps`` standard normal and
``r = s / b = sqrt(noise variance / variance of f)``: an affine image of the piecewise law
smoothed at the ratio ``r``. This module knows that law; the units are added by
`botorch_calib.posteriors.CalibratedPosterior`.

.. [Kim2024locbo]
    D. Kim, M. Zecchin, S. Park, J. Kang and O. Simeone. Robust Bayesian optimization via
    localized online conformal prediction. 2024.
"""

from __future__ import annotations

import torch
from botorch.acquisition.analytic import _log_ei_helper as log_h
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor

from botorch_calib.denoising import log_bivariate_tail, log_interval_means
from botorch_calib.numerics import (
    LOG_ZERO,
    bracketed_root,
    log1mexp,
    log_normal_interval,
    ndtri_exp,
)
from botorch_calib.predictive import PiecewisePredictive, map_finite

# Below the smallest ratio smoothing is not felt (relative effect 1e-12), above the largest
# one nothing else is. The noise-free law is the limit at the smallest.
MIN_RATIO, MAX_RATIO = 1e-6, 1e6
_ROOT_STEPS = 24


class SmoothedPredictive:
    """The law of ``z + r eps`` for ``z`` from a `PiecewisePredictive`, ``eps`` standard normal.

    Args:
        law: The piecewise law of ``z``.
        ratio: Noise ratio ``r >= 0``, broadcasting against ``law.batch_shape``.

    Computes in float64 whatever the type of its arguments, since logarithms of
    differences of tail probabilities do not survive float32; arguments and values of the
    methods are float64 tensors that broadcast against the common batch shape.
    """

    def __init__(self, law: PiecewisePredictive, ratio: Tensor) -> None:
        self.law = law.to(torch.float64)
        self.ratio = ratio.to(torch.float64).clamp(min=MIN_RATIO, max=MAX_RATIO)

    @property
    def mean(self) -> Tensor:
        """Mean, the same as that of the piecewise law."""
        return self.law.mean

    @property
    def variance(self) -> Tensor:
        """Variance: that of the piecewise law plus ``r^2``."""
        return self.law.variance + self.ratio.square()

    def mirrored(self) -> SmoothedPredictive:
        """The law of ``-(z + r eps)``."""
        return SmoothedPredictive(self.law.mirrored(), self.ratio)

    def log_excess(self, x: Tensor) -> Tensor:
        """``log E(z + r eps - x)+``: log expected improvement in units of ``b``."""
        return self._log_integrals(x)[0]

    def log_survival(self, x: Tensor) -> Tensor:
        """``log P(z + r eps > x)``: log probability of improvement."""
        return self._log_integrals(x)[1]

    def cdf(self, x: Tensor) -> Tensor:
        """``P(z + r eps <= x)``, accurate in the lower tail."""
        return self.mirrored().log_survival(-x).exp()

    def _normal_coordinates(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Threshold ``c`` of a normal piece in standard units, its ratio and standard deviation.

        Without bounds a normal piece plus noise has standard deviation
        ``norm * scale = scale sqrt(1 + (r/scale)^2)``; ``c`` is ``x`` in these units.
        """
        scale = torch.ones_like(self.ratio) if self.law.scale is None else self.law.scale
        ratio = self.ratio / scale
        norm = (1 + ratio.square()).sqrt()
        return x / (scale * norm), ratio, scale * norm, norm

    def _log_integrals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``log E(z + r eps - x)+`` and ``log P(z + r eps > x)`` in one pass."""
        if self.law.is_gaussian:
            c, _, deviation, _ = self._normal_coordinates(x)
            return log_h(-c) + deviation.log(), log_ndtr(-c)
        weights = self.law.log_weights
        parts = [self._normal_pieces(x, weights), self._uniform_pieces(x, weights)]
        excess = torch.cat([part[0] for part in parts if part is not None], dim=-1)
        prob = torch.cat([part[1] for part in parts if part is not None], dim=-1)
        return excess.logsumexp(dim=-1), prob.logsumexp(dim=-1)

    def _normal_pieces(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor] | None:
        """Logarithms of the contributions of the normal pieces, ``... x (number of them)``."""
        pieces = [j for j, uniform in enumerate(self.law.uniform) if not uniform]
        if not pieces:
            return None
        c, ratio, deviation, _ = (v.unsqueeze(-1) for v in self._normal_coordinates(x))
        # Each bounded end is needed once, though neighbouring pieces share it.
        ends = sorted({j for j in pieces} | {j + 1 for j in pieces})
        low = [ends.index(j) for j in pieces]
        high = [ends.index(j + 1) for j in pieces]
        knots = self.law.standard_knots[..., ends]
        tails = _tails_at_knots(c, knots, ratio)
        shift = weights[..., pieces] + torch.stack([deviation.log(), torch.zeros_like(deviation)])
        full = torch.stack(torch.broadcast_tensors(log_h(-c), log_ndtr(-c)))
        between = _between(tails, knots, full, low, high) + shift
        return between[0], between[1]

    def _uniform_pieces(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor] | None:
        """Logarithms of the contributions of the uniform pieces, ``... x (number of them)``."""
        pieces = [j for j, uniform in enumerate(self.law.uniform) if uniform]
        if not pieces:
            return None
        knots, ratio = self.law.knots, self.ratio.unsqueeze(-1)
        low = (knots[..., pieces] - x.unsqueeze(-1)) / ratio
        high = (knots[..., [j + 1 for j in pieces]] - x.unsqueeze(-1)) / ratio
        excess, prob = log_interval_means(low, high)
        # weight = mass / width, and the integral over the piece is width times the mean
        log_mass = weights[..., pieces] + self._log_widths(pieces)
        return excess + log_mass + ratio.log(), prob + log_mass

    def _log_widths(self, pieces: list[int]) -> Tensor:
        knots = self.law.knots
        return (knots[..., [j + 1 for j in pieces]] - knots[..., pieces]).log()

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density at ``x``."""
        weights, knots = self.law.log_weights, self.law.knots
        flags = torch.tensor(self.law.uniform, device=knots.device)
        c, ratio, deviation, norm = (v.unsqueeze(-1) for v in self._normal_coordinates(x))
        # Given z + r eps = x, a normal piece's z (in its units) is N(c / norm, (ratio/norm)^2).
        ends = map_finite(self.law.standard_knots, norm / ratio, -c / ratio)
        normal = log_phi(c) - deviation.log() + log_normal_interval(ends[..., :-1], ends[..., 1:])
        ratio = self.ratio.unsqueeze(-1)
        ends = map_finite(knots, 1 / ratio, -x.unsqueeze(-1) / ratio)
        flat = log_normal_interval(ends[..., :-1], ends[..., 1:])
        return (torch.where(flags, flat, normal) + weights).logsumexp(dim=-1)

    def quantile(self, level: float) -> Tensor:
        """The ``level``-quantile, ``level`` in (0, 1), with its exact first derivative.

        A bracketing solve without a graph, then one differentiable Newton step, which
        carries the derivative given by the implicit function theorem.
        """
        if level < 0.5:  # work with the tail probability that is small, hence exact
            return -self.mirrored().quantile(1 - level)
        with torch.no_grad():
            x = self._solve_quantile(level)
            density = self.log_prob(x).exp()
        return x - ((1 - level) - self.log_survival(x).exp()) / density

    def _solve_quantile(self, level: float) -> Tensor:
        """Root of ``Phi^-1(cdf(x)) - Phi^-1(level)``, which is nearly linear in ``x``."""
        tail = self.ratio.new_tensor(1 - level)
        target = torch.special.ndtri(tail)

        def gap(x: Tensor) -> Tensor:
            return target - ndtri_exp(self.log_survival(x).clamp(max=-1e-300))

        # P(z + r eps > -Q'(tail/2) - r Phi^-1(tail/2)) <= tail, with Q' of the mirrored law,
        # and likewise from below: a bracket.
        mirror = self.law.mirrored()
        low, high = (1 - tail / 2).log(), (tail / 2).log()
        ends = [-(mirror.transport(z) + self.ratio * z) for z in map(ndtri_exp, (low, high))]
        return bracketed_root(gap, ends[0], ends[1], _ROOT_STEPS)


def _tails_at_knots(c: Tensor, knots: Tensor, ratio: Tensor) -> Tensor:
    """Both integrals over the tail beyond each knot, away from zero: ``2 x ... x knots``."""
    open_end = knots.isinf()
    inner = knots.masked_fill(open_end, 1.0)
    side = torch.where(inner < 0, -1.0, 1.0).to(knots)
    tails = torch.stack(log_bivariate_tail(c, inner * side, ratio, side))
    return tails.masked_fill(open_end, LOG_ZERO)


def _between(tails: Tensor, knots: Tensor, full: Tensor, low: list[int], high: list[int]) -> Tensor:
    """Integrals over the pieces, from those over the tails and over the whole line.

    A piece right of zero is the difference of two upper tails, one left of zero that of two
    lower tails, and one around zero is the whole line less a tail on either side.
    """
    right, left = knots[..., low] >= 0, knots[..., high] <= 0
    tail_low, tail_high = tails[..., low], tails[..., high]
    outer = torch.where(right, tail_low, torch.where(left, tail_high, full))
    both = torch.logaddexp(tail_low, tail_high)
    removed = torch.where(right, tail_high, torch.where(left, tail_low, both))
    return outer + log1mexp(removed - outer)
