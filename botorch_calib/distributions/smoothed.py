r"""`SmoothedPredictive`: a piecewise distribution plus Gaussian noise, and that without noise.

Denoising [Kim2024locbo, eq. 30] turns the calibrated distribution of an observation ``y`` into one
of the objective, ``f~ ~ int N(f; mu + a (y - mu), s^2) p(y) dy``. With ``z = (y - mu)/sigma_y``
and ``b = a sigma_y`` this is the distribution of ``mu + b (z + r eps)``, ``eps`` standard normal
and ``r = s / b = sqrt(noise variance / variance of f)``: an affine image of the piecewise
distribution smoothed at the ratio ``r``. This module knows that distribution; the units are added
by `botorch_calib.posteriors.CalibratedPosterior`. Without noise, or where the distribution of ``y``
itself is wanted, `UnsmoothedPredictive` answers the same questions of ``z`` at a fraction of the
cost.

The density that the paper prints as the result (eq. 46) is not this one. With its
``A = a^2 / (2 s^2)`` and ``C = 1 / (2 sigma_y^2)`` the exponent has to be
``-A C / (A + C) (B - D)^2``, and ``A + C`` has to stand wherever ``A^2 + C^2`` and ``A``, ``C``
wherever their squares do; the error function of the lower limit enters with a plus; the threshold
is that of round ``t + 1``; and the variance given ``y'`` is ``s^2``, without noise.

.. [Kim2024locbo]
    D. Kim, M. Zecchin, S. Park, J. Kang and O. Simeone. Robust Bayesian optimization via
    localized online conformal prediction. 2024.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from botorch.utils.probability.utils import log_ndtr, log_phi
from torch import Tensor

from botorch_calib.distributions import _denoised
from botorch_calib.distributions._normal_functions import log1mexp, log_h
from botorch_calib.distributions._smoothed_quantile import (
    SmoothedQuantile,
    normal_points,
    upper_score,
)
from botorch_calib.distributions.moments import WithMoments
from botorch_calib.distributions.piecewise import PiecewisePredictive

# Below the smallest ratio smoothing is not felt (it adds r^2 to the variance, 1e-12), above the
# largest one nothing else is. The noise-free distribution is the limit at the smallest.
MIN_RATIO, MAX_RATIO = 1e-6, 1e6


class _WithTails(WithMoments):
    """What follows from the moments, and from the probabilities of both tails."""

    def log_survival(self, x: Tensor) -> Tensor:
        """Log probability of a value above ``x``."""
        raise NotImplementedError

    def log_excess(self, x: Tensor) -> Tensor:
        """Logarithm of the mean excess over ``x``, that of a smaller value being 0."""
        raise NotImplementedError

    def quantile(self, level: float | Tensor) -> Tensor:
        """The ``level``-quantile."""
        raise NotImplementedError

    def mirrored(self) -> _WithTails:
        """The distribution with the opposite sign."""
        raise NotImplementedError

    def cdf(self, x: Tensor) -> Tensor:
        """Probability of a value of at most ``x``, accurate in the lower tail."""
        # Rounding of the logarithm may exceed 1 by an ulp.
        return self.mirrored().log_survival(-x).exp().clamp(max=1.0)

    def mean_below(self, level: float) -> Tensor:
        """Mean of the values below the ``level``-quantile, with derivatives as exact as its own.

        With the quantile ``q`` it is ``E[x | x <= q] = q - E(q - x)+ / level``. The derivative of
        the right-hand side with respect to ``q``, ``1 - P(x <= q) / level``, is 0 at the quantile,
        so that an error of it enters squared. Second derivatives need those of ``q`` all the same.
        """
        q = self.quantile(level)
        return q - self.mirrored().log_excess(-q).exp() / level

    def log_between(self, lower: Tensor | None, upper: Tensor | None) -> Tensor:
        """Log probability of a value between two numbers, None for no end on that side.

        The probability is the difference of two tail probabilities, of the upper or of the lower
        tail. It is taken on the side on which the larger of the two is smaller, where their
        difference loses the fewest digits: what is left is exact to about 1e-16 over the distance
        of the two numbers in standard deviations.
        """
        if lower is None and upper is None:
            raise ValueError("Without ends the probability is 1.")
        if upper is None:
            return self.log_survival(lower)  # type: ignore[arg-type]
        mirrored = self.mirrored()
        if lower is None:
            return mirrored.log_survival(-upper)
        above = self.log_survival(lower), self.log_survival(upper)
        below = mirrored.log_survival(-upper), mirrored.log_survival(-lower)
        in_upper_tail = above[0] < below[0]
        larger, smaller = (
            torch.where(in_upper_tail, a, b) for a, b in zip(above, below, strict=True)
        )
        return larger + log1mexp(smaller - larger)


class SmoothedPredictive(_WithTails):
    """The distribution of ``z + r eps``, with ``z`` piecewise and ``eps`` standard normal.

    Computes in float64 whatever the type of its arguments, since logarithms of
    differences of tail probabilities do not survive float32; arguments and values of the
    methods are float64 tensors that broadcast against the common batch shape.

    Args:
        predictive: The piecewise distribution of ``z``.
        ratio: Noise ratio ``r >= 0``, broadcasting against ``predictive.batch_shape``; held between
            `MIN_RATIO` and `MAX_RATIO`.
    """

    def __init__(self, predictive: PiecewisePredictive, ratio: Tensor) -> None:
        self.predictive = predictive.to(torch.float64)
        self.ratio = ratio.to(torch.float64).clamp(min=MIN_RATIO, max=MAX_RATIO)

    def moments(self) -> tuple[Tensor, Tensor]:
        """The mean of the piecewise distribution, and its variance plus ``r^2``."""
        mean, variance = self.predictive.moments()
        return mean, variance + self.ratio.square()

    def mirrored(self) -> SmoothedPredictive:
        """The distribution of ``-(z + r eps)``."""
        return SmoothedPredictive(self.predictive.mirrored(), self.ratio)

    def log_excess(self, x: Tensor) -> Tensor:
        """``log E(z + r eps - x)+``: log expected improvement in units of ``b``."""
        shape, x, ratio, knots, masses = self._columns(x)
        if self.predictive.is_gaussian:
            deviation = (1 + ratio.square()).sqrt()
            log_excess = log_h(-x / deviation) + deviation.log()
        else:
            form, parts = self.predictive.form, self._known_parts()
            log_excess = _denoised.log_excess(x, ratio, knots, masses, form, parts)
        log_excess, scale = log_excess.view(shape), self.predictive.scale
        return log_excess if scale is None else log_excess + scale.log()

    def log_survival(self, x: Tensor) -> Tensor:
        """``log P(z + r eps > x)``: log probability of improvement."""
        shape, x, ratio, knots, masses = self._columns(x)
        if self.predictive.is_gaussian:
            log_survival = log_ndtr(-x / (1 + ratio.square()).sqrt())
        else:
            form, parts = self.predictive.form, self._known_parts()
            log_survival = _denoised.log_survival(x, ratio, knots, masses, form, parts)
        return log_survival.view(shape)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density at ``x``."""
        shape, x, ratio, knots, _ = self._columns(x)
        log_p = _denoised.log_densities(x, ratio, knots, self.predictive.form)
        log_masses = _common_or_rows_first(self.predictive.log_masses, shape)
        log_p = (log_p + log_masses).logsumexp(dim=0).view(shape)
        return log_p if self.predictive.scale is None else log_p - self.predictive.scale.log()

    def quantile(self, level: float | Tensor) -> Tensor:
        """The ``level``-quantile, ``level`` in (0, 1), with exact derivatives of every order.

        Several levels stand in front of the batch: of ``k x 1 ... x 1`` it is ``k x batch_shape``.
        """
        if isinstance(level, Tensor):
            is_low = level.flatten() < 0.5
            if is_low.all():
                return -self.mirrored()._upper_quantile(level)
            if not is_low.any():
                return self._upper_quantile(1 - level)
            low, high = self.quantile(level[is_low]), self.quantile(level[~is_low])
            order = torch.cat([is_low.nonzero(), (~is_low).nonzero()]).squeeze(-1)
            return torch.cat([low, high])[order.argsort()]
        if level < 0.5:  # work with the tail probability that is small, hence exact
            return -self.mirrored()._upper_quantile(level)
        return self._upper_quantile(1 - level)

    def _upper_quantile(self, tail: float | Tensor) -> Tensor:
        """The point beyond which lies the probability ``tail``, at most 1/2."""
        predictive, ratio = self._in_standard_units()
        levels_shape = tail.shape if isinstance(tail, Tensor) else ()
        shape = torch.broadcast_shapes(levels_shape, ratio.shape, predictive.batch_shape)
        if predictive.is_gaussian:
            x = ((1 + ratio.square()).sqrt() * upper_score(tail)).expand(shape)
        else:
            ratio = ratio.expand(shape).reshape(-1)
            knots, masses = (
                _common_or_rows_first(values, shape)
                for values in (predictive.finite_knots, predictive.masses)
            )
            if isinstance(tail, Tensor):
                table, tail = None, tail.expand(shape).reshape(-1)
            else:
                table = predictive.quantile_table(tail)
            if table is None:
                points = _candidates(predictive, ratio, shape, tail)
            else:
                points = table(ratio).unsqueeze(0)
            x = SmoothedQuantile.apply(ratio, knots, masses, points, tail, predictive.form)
            x = x.view(shape)
        return x if self.predictive.scale is None else x * self.predictive.scale

    def _in_standard_units(self) -> tuple[PiecewisePredictive, Tensor]:
        """The piecewise distribution, and the ratio, in units of the scale of the normal pieces.

        What is common to the batch has no batch dimensions then: that a row is common is seen from
        its strides. In these units a conformal distribution with stretched tails is always common.
        """
        predictive, scale = self.predictive, self.predictive.scale
        if scale is None:
            return predictive.without_copies(), self.ratio
        return predictive.standardized().without_copies(), self.ratio / scale

    def _known_parts(self) -> _denoised.Parts | None:
        return self._in_standard_units()[0].known_parts()

    def _columns(self, x: Tensor) -> tuple[torch.Size, Tensor, Tensor, Tensor, Tensor]:
        """The common batch shape, and for its ``n`` numbers points, ratios, knots and masses.

        All are in units of the scale of the normal pieces. Finite knots and masses are
        ``num x n``, or ``num x 1`` where they are common to the batch.
        """
        predictive, ratio = self._in_standard_units()
        if self.predictive.scale is not None:
            x = x / self.predictive.scale
        shape = torch.broadcast_shapes(x.shape, ratio.shape, self.predictive.batch_shape)
        x, ratio = (values.expand(shape).reshape(-1) for values in (x, ratio))
        knots, masses = (
            _common_or_rows_first(values, shape)
            for values in (predictive.finite_knots, predictive.masses)
        )
        return shape, x, ratio, knots, masses


class UnsmoothedPredictive(_WithTails):
    """The distribution of ``z`` itself, with the methods of `SmoothedPredictive`, in float64.

    Args:
        predictive: The piecewise distribution of ``z``.
    """

    def __init__(self, predictive: PiecewisePredictive) -> None:
        self.predictive = predictive.to(torch.float64)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Those of the piecewise distribution."""
        return self.predictive.moments()

    def mirrored(self) -> UnsmoothedPredictive:
        """The distribution of ``-z``."""
        return UnsmoothedPredictive(self.predictive.mirrored())

    def log_excess(self, x: Tensor) -> Tensor:
        """``log E(z - x)+``; `LOG_ZERO` beyond the end of a bounded support."""
        if self.predictive.form.stretched:
            return self._log_stretched_excess(x)
        log_excess, scale = self._integral(x, _denoised.log_excess), self.predictive.scale
        return log_excess if scale is None else log_excess + scale.log()

    def log_survival(self, x: Tensor) -> Tensor:
        """``log P(z > x)``; `LOG_ZERO` beyond the end of a bounded support."""
        if self.predictive.form.stretched:
            return self._log_stretched_survival(x)
        return self._integral(x, _denoised.log_survival)

    def _log_stretched_excess(self, x: Tensor) -> Tensor:
        """`log_excess` of a uniform piece between stretched tails.

        In units of the scale let it reach from ``-c`` to ``c``, with the mass ``p`` between two
        tails of mass ``q = Phi(-c)``. They are those of the normal distribution, and so is the
        mean, 0: for ``|x| >= c`` the excess is ``h(-x)``. Between, with ``v = c - x``, the tail
        adds ``h(-c) + q v`` and the uniform piece ``p v^2 / (4 c)``.
        """
        x, c, room, tail, center = self._in_stretched_units(x)
        at_end = log_phi(c).exp() - c * tail
        inner = torch.addcmul(at_end, room, tail + room * (center / (4.0 * c))).log()
        log_excess = torch.where(x.abs() < c, inner, log_h(-x))
        scale = self.predictive.scale
        return log_excess if scale is None else log_excess + scale.log()

    def _log_stretched_survival(self, x: Tensor) -> Tensor:
        """`log_survival` of a uniform piece between stretched tails, with the same symbols."""
        x, c, room, tail, center = self._in_stretched_units(x)
        inner = (tail + room * (center / (2.0 * c))).log()
        return torch.where(x.abs() < c, inner, log_ndtr(-x))

    def _in_stretched_units(self, x: Tensor) -> tuple[Tensor, ...]:
        """``x``, ``c`` and ``max(0, c - x)`` in units of the scale, ``q`` and ``p``."""
        predictive = self.predictive
        if predictive.scale is not None:
            x = x / predictive.scale
        tail, center, _ = predictive.masses.unbind(-1)
        c = -torch.special.ndtri(tail)
        x = x.expand(torch.broadcast_shapes(x.shape, predictive.batch_shape))
        return x, c, (c - x).clamp(min=0.0), tail, center

    def _integral(self, x: Tensor, way: Callable[..., Tensor]) -> Tensor:
        """One of both, in units of the scale of the normal pieces."""
        predictive = self.predictive.standardized().without_copies()
        if self.predictive.scale is not None:
            x = x / self.predictive.scale
        shape = torch.broadcast_shapes(x.shape, self.predictive.batch_shape)
        x = x.expand(shape)
        if predictive.is_gaussian:
            return log_h(-x) if way is _denoised.log_excess else log_ndtr(-x)
        knots, masses = (
            _common_or_rows_first(values, shape)
            for values in (predictive.finite_knots, predictive.masses)
        )
        return way(
            x.reshape(-1), None, knots, masses, predictive.form, predictive.known_parts()
        ).view(shape)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log density at ``x``, ``-inf`` beyond the ends of a bounded support."""
        return self.predictive.log_prob(x)

    def quantile(self, level: float | Tensor) -> Tensor:
        """The ``level``-quantile, ``level`` in (0, 1), or several: see `SmoothedPredictive`."""
        return self.predictive.quantile(level)


@torch.no_grad()
def _candidates(
    predictive: PiecewisePredictive, ratio: Tensor, shape: torch.Size, tail: float | Tensor
) -> Tensor:
    """Points ``T(u) + r eps`` for `SmoothedQuantile`, ``7 x n``."""
    u, eps = normal_points(tail, ratio.device)
    batch = predictive.batch_shape
    if u.dim() == 2:
        z = predictive.transport(u.view(len(u), *shape)).view(u.shape)
        return torch.addcmul(z, eps, ratio)
    z = predictive.transport(u.view(-1, *[1] * len(batch)))
    z = z.expand(len(u), *shape).reshape(len(u), -1) if batch else z.unsqueeze(-1)
    return torch.addcmul(z, eps.unsqueeze(-1), ratio)


def _rows_first(values: Tensor, shape: torch.Size) -> Tensor:
    """``values`` (``batch_shape x K``) for the ``n`` numbers of ``shape``: ``K x n``.

    The integrals work on one row for each piece or knot; this is a view where nothing is expanded.
    """
    num = values.shape[-1]
    return values.expand(*shape, num).reshape(shape.numel(), num).t()


def _common_or_rows_first(values: Tensor, shape: torch.Size) -> Tensor:
    """`_rows_first`, or ``K x 1`` for values without batch dimensions."""
    return values.unsqueeze(-1) if values.dim() == 1 else _rows_first(values, shape)
