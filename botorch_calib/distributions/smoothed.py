r"""`SmoothedPredictive`: a piecewise law convolved with Gaussian noise, and that law without.

Denoising [Kim2024locbo, eq. 30] turns the calibrated law of an observation ``y`` into one
of the objective, ``f~ ~ int N(f; mu + a (y - mu), s^2) p(y) dy``. With ``z = (y - mu)/sigma_y``
and ``b = a sigma_y`` this is the law of ``mu + b (z + r eps)``, ``eps`` standard normal and
``r = s / b = sqrt(noise variance / variance of f)``: an affine image of the piecewise law
smoothed at the ratio ``r``. This module knows that law; the units are added by
`botorch_calib.posteriors.CalibratedPosterior`. Without noise, or where the law of ``y`` itself is
wanted, `UnsmoothedPredictive` answers the same questions of ``z`` at a fraction of the cost.

.. [Kim2024locbo]
    D. Kim, M. Zecchin, S. Park, J. Kang and O. Simeone. Robust Bayesian optimization via
    localized online conformal prediction. 2024.
"""

from __future__ import annotations

import math

import torch
from botorch.utils.probability.utils import log_phi
from torch import Tensor

from botorch_calib._root_finding import bracketed_newton
from botorch_calib.distributions._noise_free import univariate_integrals
from botorch_calib.distributions._pieces import Layout
from botorch_calib.distributions._smoothed_integrals import (
    log_densities,
    smoothed_integrals,
    smoothed_tail,
    tail_and_density,
)
from botorch_calib.distributions._special import log_normal_integrals, ndtri_exp
from botorch_calib.distributions.piecewise import PiecewisePredictive

# Below the smallest ratio smoothing is not felt (relative effect 1e-12), above the largest
# one nothing else is. The noise-free law is the limit at the smallest.
MIN_RATIO, MAX_RATIO = 1e-6, 1e6
_ROOT_STEPS = 60


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
        # Rounding of the logarithm may exceed 1 by an ulp.
        return self.mirrored().log_survival(-x).exp().clamp(max=1.0)

    def _arguments(self, x: Tensor) -> tuple[torch.Size, Tensor, Tensor, Tensor]:
        """The common batch shape, and ``x``, ratios and finite knots for its ``n`` numbers.

        All are in units of the scale of the normal pieces; the knots are ``num_knots x n``.
        """
        law, ratio = self.law, self.ratio
        x, knots = _standardized(law, x)
        ratio = ratio if law.scale is None else ratio / law.scale
        shape = law.batch_shape
        if not shape == x.shape == ratio.shape:
            shape = torch.broadcast_shapes(x.shape, ratio.shape, shape)
            x, ratio = x.expand(shape), ratio.expand(shape)
        return shape, x.reshape(-1), ratio.reshape(-1), _rows_first(knots, shape)

    def _log_integrals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``log E(z + r eps - x)+`` and ``log P(z + r eps > x)`` in one pass."""
        shape, x, ratio, knots = self._arguments(x)
        if self.law.is_gaussian:
            deviation = (1 + ratio.square()).sqrt()
            survival, excess = log_normal_integrals(-x / deviation)
            excess = excess + deviation.log()
        else:
            masses = _rows_first(self.law.masses, shape)
            excess, survival = smoothed_integrals(x, ratio, knots, masses, _layout(self.law))
        excess, survival = excess.view(shape), survival.view(shape)
        return excess if self.law.scale is None else excess + self.law.scale.log(), survival

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density at ``x``."""
        shape, x, ratio, knots = self._arguments(x)
        log_p, _ = log_densities(x, ratio, knots, _layout(self.law))
        log_masses = _rows_first(self.law.log_masses, shape)
        log_p = (log_p + log_masses).logsumexp(dim=0).view(shape)
        return log_p if self.law.scale is None else log_p - self.law.scale.log()

    def quantile(self, level: float) -> Tensor:
        """The ``level``-quantile, ``level`` in (0, 1), with its exact first derivative."""
        if level < 0.5:  # work with the tail probability that is small, hence exact
            return -self.mirrored()._upper_quantile(level)
        return self._upper_quantile(1 - level)

    def _upper_quantile(self, tail: float) -> Tensor:
        """The point beyond which lies the probability ``tail``.

        A bracketing solve without a graph, then one differentiable Newton step, which
        carries the derivative given by the implicit function theorem.
        """
        points = self._quantile_bracket(tail)
        _, points, _, _ = self._arguments(points)
        shape, _, ratio, knots = self._arguments(self.ratio)
        if self.law.is_gaussian:
            x = -(1 + ratio.square()).sqrt() * float(ndtri_exp(ratio.new_tensor(math.log(tail))))
        else:
            arguments = (ratio, knots, _rows_first(self.law.masses, shape), _layout(self.law))
            low, high, guess = points.view(3, -1)
            x = _solve_quantile(tail, low, high, guess, arguments)
            log_tail, log_density = smoothed_tail(x, *arguments)
            x = x + (log_tail.exp() - tail) / log_density.exp()
        x = x.view(shape)
        return x if self.law.scale is None else x * self.law.scale

    @torch.no_grad()
    def _quantile_bracket(self, tail: float) -> Tensor:
        """Points with more and with less than ``tail`` beyond them, and a guess between.

        With ``Q'`` the quantile function of the mirrored law,
        ``P(z + r eps > -Q'(tail/2) - r Phi^-1(tail/2)) <= tail``, and likewise from below. The
        guess adds deviations as if both laws were normal. Shape ``3 x batch_shape``.
        """
        levels = [math.log1p(-tail / 2), math.log(tail / 2), math.log(tail)]
        z = ndtri_exp(self.ratio.new_tensor(levels))
        shape = torch.broadcast_shapes(self.ratio.shape, self.law.batch_shape)
        noise = -self.ratio * z.view(3, *[1] * len(shape))
        points = -self.law.mirrored().transport(z.view(3, *[1] * len(shape)))
        guess = torch.where(points[2] > 0, torch.hypot(points[2], noise[2]), points[2] + noise[2])
        return torch.cat([points[:2] + noise[:2], guess.expand(1, *shape)])


class UnsmoothedPredictive:
    """The law of ``z`` itself, with the methods of `SmoothedPredictive` and float64 throughout.

    Args:
        law: The piecewise law of ``z``.
    """

    def __init__(self, law: PiecewisePredictive) -> None:
        self.law = law.to(torch.float64)

    @property
    def mean(self) -> Tensor:
        """Mean."""
        return self.law.mean

    @property
    def variance(self) -> Tensor:
        """Variance."""
        return self.law.variance

    def mirrored(self) -> UnsmoothedPredictive:
        """The law of ``-z``."""
        return UnsmoothedPredictive(self.law.mirrored())

    def log_excess(self, x: Tensor) -> Tensor:
        """``log E(z - x)+``; `LOG_ZERO` beyond the end of a bounded law."""
        value = self._log_integrals(x)[0]
        return value if self.law.scale is None else value + self.law.scale.log()

    def log_survival(self, x: Tensor) -> Tensor:
        """``log P(z > x)``; `LOG_ZERO` beyond the end of a bounded law."""
        return self._log_integrals(x)[1]

    def cdf(self, x: Tensor) -> Tensor:
        """``P(z <= x)``, accurate in the lower tail."""
        # Rounding of the logarithm may exceed 1 by an ulp.
        return self.mirrored().log_survival(-x).exp().clamp(max=1.0)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density at ``x``, ``-inf`` beyond the ends of a bounded law."""
        return self.law.log_prob(x)

    def quantile(self, level: float) -> Tensor:
        """The ``level``-quantile, ``level`` in (0, 1)."""
        return self.law.quantile(self.law.knots.new_tensor(level))

    def _log_integrals(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``log E(z - x)+``, in units of the scale, and ``log P(z > x)``."""
        shape = torch.broadcast_shapes(x.shape, self.law.batch_shape)
        x, knots = _standardized(self.law, x)
        if self.law.is_gaussian:
            survival, excess = log_normal_integrals(-x.expand(shape))
            return excess, survival
        masses, knots = _rows_first(self.law.masses, shape), _rows_first(knots, shape)
        x = x.expand(shape).reshape(-1)
        excess, survival = univariate_integrals(x, knots, masses, _layout(self.law))
        return excess.view(shape), survival.view(shape)


@torch.no_grad()
def _solve_quantile(
    tail: float,
    low: Tensor,
    high: Tensor,
    guess: Tensor,
    arguments: tuple[Tensor, Tensor, Tensor, Layout],
) -> Tensor:
    """Root of ``Phi^-1(tail) - Phi^-1(P(z + r eps > x))``, nearly linear in ``x``."""
    target = float(ndtri_exp(low.new_tensor(math.log(tail))))
    ratio, knots, masses, layout = arguments

    def gap(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        some = (ratio, knots, masses)
        if len(rows) < len(low):
            some = (ratio[rows], knots[:, rows], masses[:, rows])
        log_tail, log_p = tail_and_density(x, *some, layout)
        z = ndtri_exp(log_tail.clamp(max=-1e-300))
        return target - z, torch.exp(log_p - log_phi(z))

    return bracketed_newton(gap, low, high, guess, _ROOT_STEPS, tol=1e-8)


def _layout(law: PiecewisePredictive) -> Layout:
    return Layout(law.uniform, *law.open_ends, law.around_zero)


def _standardized(law: PiecewisePredictive, x: Tensor) -> tuple[Tensor, Tensor]:
    """``x`` and the finite knots in units of the scale of the normal pieces."""
    if law.scale is None:
        return x, law.finite_knots
    return x / law.scale, law.finite_knots / law.scale.unsqueeze(-1)


def _rows_first(values: Tensor, shape: torch.Size) -> Tensor:
    """``values`` (``batch_shape x K``) for the ``n`` numbers of ``shape``: ``K x n``."""
    num = values.shape[-1]
    return values.expand(*shape, num).reshape(shape.numel(), num).t()
