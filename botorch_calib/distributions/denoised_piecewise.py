r"""Piecewise distributions with added Gaussian noise, and without noise.

Denoising [Kim2024locbo, eq. 30] turns the calibrated density ``p`` of an observation ``y`` into a
distribution of the objective, ``f~ ~ int N(f; mu + a (y - mu), s^2) p(y) dy``. Under the Gaussian
process, ``y ~ N(mu, sigma_y^2)``, and the objective given ``y`` has the mean ``mu + a (y - mu)``
and the variance ``s^2``. With ``z = (y - mu) / sigma_y`` and ``b = a sigma_y``, ``f~`` is
distributed as ``mu + b z + s eps``, with ``eps`` standard normal. `SmoothedPredictive` is the
distribution of ``b z + s eps``, and `Prediction` adds ``mu``. `UnsmoothedPredictive` is the
distribution of ``b z``, for observations or if there is no noise, and costs much less.

The density printed in the paper (eq. 46) has errors. In the paper's notation, with ``A = a^2 / (2
s^2)`` and ``C = 1 / (2 sigma_y^2)``, the corrections are:

* The exponent is ``-A C / (A + C) (B - D)^2``.
* ``A^2 + C^2`` is replaced with ``A + C``, and the squares of ``A`` and ``C`` with ``A`` and ``C``.
* The error function of the lower limit has a plus sign.
* The threshold is ``lambda_{t + 1}`` instead of ``lambda_t``.
* The variance given ``y'`` is ``s^2``; the noise variance is not added.

.. [Kim2024locbo]
    D. Kim, M. Zecchin, S. Park, J. Kang and O. Simeone. Robust Bayesian optimization via
    localized online conformal prediction. 2024.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Self

import torch
from botorch.utils.probability.utils import log_ndtr
from botorch.utils.safe_math import log1mexp
from torch import Tensor

from botorch_calib.distributions import _denoised_integrals as integrals
from botorch_calib.distributions._denoised_quantile import RatioTable, denoised_quantile
from botorch_calib.distributions._normal_functions import cached_constant, log_h, upper_score
from botorch_calib.distributions.form import PiecewiseForm
from botorch_calib.distributions.piecewise import PiecewisePredictive, WithMoments


class WithTails(WithMoments):
    """A distribution whose cdf is computed from the probabilities of both tails."""

    def log_survival(self, x: Tensor) -> Tensor:
        """Return ``log P(v > x)`` for a value ``v`` of this distribution."""
        raise NotImplementedError

    def log_excess(self, x: Tensor) -> Tensor:
        """Return ``log E(v - x)+`` for a value ``v`` of this distribution."""
        raise NotImplementedError

    def quantile(self, level: float | Tensor) -> Tensor:
        """Return the ``level``-quantile."""
        raise NotImplementedError

    def mirrored(self) -> WithTails:
        """Return the distribution of ``-v`` for a value ``v`` of this distribution."""
        raise NotImplementedError

    def cdf(self, x: Tensor) -> Tensor:
        """Return the probability of values up to ``x``, accurate in the lower tail."""
        # The exponential of a rounded logarithm may exceed 1 by a rounding unit.
        return self.mirrored().log_survival(-x).exp().clamp(max=1.0)

    def mean_below(self, level: float) -> Tensor:
        """Return the mean of the values below the ``level``-quantile, differentiable.

        With the quantile ``q``, the mean is ``q - E(q - v)+ / level``. Its derivative in ``q``, ``1
        - P(v <= q) / level``, is 0, so a small error of the quantile has a second-order effect.
        """
        q = self.quantile(level)
        return q - self.mirrored().log_excess(-q).exp() / level

    def log_between(self, lower: Tensor | None, upper: Tensor | None) -> Tensor:
        """Return the log probability of a value between two limits; one of them may be None.

        The probability has a relative error of about 1e-16 divided by the distance between the
        limits in standard deviations.
        """
        if upper is None:
            assert lower is not None
            return self.log_survival(lower)
        mirrored = self.mirrored()
        if lower is None:
            return mirrored.log_survival(-upper)
        above = self.log_survival(lower), self.log_survival(upper)
        below = mirrored.log_survival(-upper), mirrored.log_survival(-lower)
        # The result is a difference of two probabilities of the same tail. It loses fewer digits in
        # the tail whose larger probability is smaller.
        in_upper_tail = above[0] < below[0]
        larger, smaller = (
            torch.where(in_upper_tail, a, b) for a, b in zip(above, below, strict=True)
        )
        # The clamp keeps the result finite if the two probabilities are equal.
        return larger + log1mexp((smaller - larger).clamp(max=-torch.finfo(larger.dtype).eps))


class UnsmoothedPredictive(WithTails):
    """The distribution of ``unit z``, with the methods of `SmoothedPredictive`, in float64.

    The logarithm is `LOG_ZERO` if an excess or a tail probability is 0.

    Args:
        predictive: The piecewise distribution of ``z``.
        unit: Positive factor of ``z``, broadcasting against ``predictive.batch_shape`` (default:
            1).

    Example:
        >>> predictive = PiecewisePredictive.conformal(alpha=0.2, half_width=2.0)
        >>> upper = UnsmoothedPredictive(predictive).quantile(0.9)  # 2
    """

    noise: Tensor | None = None

    def __init__(self, predictive: PiecewisePredictive, unit: Tensor | None = None) -> None:
        predictive = predictive.to(torch.float64)
        self.predictive = predictive if unit is None else predictive.times(unit)
        scale = self.predictive.scale
        self._scale = predictive.masses.new_ones(()) if scale is None else scale

    def mirrored(self) -> Self:
        twin = copy(self)
        twin.predictive = self.predictive.mirrored()
        return twin

    def moments(self) -> tuple[Tensor, Tensor]:
        mean, variance = self.predictive.moments()
        return mean, variance if self.noise is None else variance + self.noise.square()

    def log_excess(self, x: Tensor) -> Tensor:
        if self.predictive.form.is_gaussian:
            deviation = self._deviation()
            return log_h(-x / deviation) + deviation.log()
        return self._integral(x, integrals.log_excess)

    def log_survival(self, x: Tensor) -> Tensor:
        if self.predictive.form.is_gaussian:
            return log_ndtr(-x / self._deviation())
        # Rounded masses may add up to slightly more than 1, so the logarithm is clamped.
        return self._integral(x, integrals.log_survival).clamp(max=0.0)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density at ``x``, which is ``-inf`` outside a bounded support."""
        return self.predictive.log_prob(x)

    def quantile(self, level: float | Tensor) -> Tensor:
        """Return the ``level``-quantile, for levels as in `SmoothedPredictive.quantile`."""
        return self.predictive.quantile(level)

    def _deviation(self) -> Tensor:
        """Return the standard deviation of a distribution whose only piece is normal."""
        scale = self._scale.expand(self._shape())
        return scale if self.noise is None else (scale.square() + self.noise.square()).sqrt()

    def _shape(self, *others: Tensor) -> torch.Size:
        """Return the common batch shape of the distribution and ``others``."""
        shapes = {v.shape for v in (self._scale, self.noise, *others) if v is not None}
        shapes.add(self.predictive.batch_shape)
        # `broadcast_shapes` takes as long as ten tensor operations, so equal shapes skip it.
        return shapes.pop() if len(shapes) == 1 else torch.broadcast_shapes(*shapes)

    def _integral(self, x: Tensor, way: Callable[..., Tensor]) -> Tensor:
        """Return ``way``, which is `integrals.log_excess` or `integrals.log_survival`, at ``x``."""
        shape, standard = self._shape(x), self.predictive.standardized()
        x, scale = (v.expand(shape).reshape(-1) for v in (x, self._scale))
        noise = None if self.noise is None else self.noise.expand(shape).reshape(-1)
        return way(x, noise, integrals.pieces_of(standard, shape), scale=scale).view(shape)


class SmoothedPredictive(UnsmoothedPredictive):
    """The distribution of ``unit z + noise eps``, with ``z`` piecewise and ``eps`` standard normal.

    Methods take and return float64 tensors that broadcast against the common batch shape, since
    float32 does not resolve logarithms of differences of tail probabilities.

    Args:
        predictive: The piecewise distribution of ``z``.
        noise: Standard deviation of the noise, at least 0, broadcasting against
            ``predictive.batch_shape``. It is raised to 1e-6 of the standard deviation of normal
            pieces, times ``unit``, if it is smaller.
        unit: Positive factor of ``z``, with the same shape as ``noise`` (default: 1).

    Example:
        >>> predictive = PiecewisePredictive.conformal(alpha=0.2, half_width=2.0)
        >>> upper = SmoothedPredictive(predictive, noise=torch.tensor(0.5)).quantile(0.9)
    """

    noise: Tensor

    def __init__(
        self, predictive: PiecewisePredictive, noise: Tensor, unit: Tensor | None = None
    ) -> None:
        super().__init__(predictive, unit)
        self.noise = noise.to(torch.float64)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log density at ``x``."""
        shape, standard = self._shape(x), self.predictive.standardized()
        scale, ratio = integrals.held_ratio(self._scale, self.noise)
        at, ratio = (v.expand(shape).reshape(-1) for v in (x / scale, ratio))
        log_p = integrals.log_densities(at, ratio, integrals.pieces_of(standard, shape))
        log_masses = integrals.pieces_first(standard.log_masses, shape)
        return (log_p + log_masses).logsumexp(dim=0).view(shape) - scale.log()

    def quantile(self, level: float | Tensor) -> Tensor:
        """Return the ``level``-quantile for one level, or for a tensor of levels, in (0, 1).

        Levels of shape ``k x 1 ... x 1`` give quantiles of shape ``k x batch_shape``. Quantiles
        are differentiable. Second derivatives with respect to the noise lose digits if the noise
        is below 1e-3 of the scale of ``unit z``.
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
        if level < 0.5:  # the mirrored tail probability is `level`, without rounding
            return -self.mirrored()._upper_quantile(level)
        return self._upper_quantile(1 - level)

    def _upper_quantile(self, tail: float | Tensor) -> Tensor:
        """Return the point above which the probability is ``tail``, for ``tail`` up to 1/2."""
        if self.predictive.form.is_gaussian:
            return self._deviation() * upper_score(tail)
        if not isinstance(tail, Tensor):
            shape, table = self._shape(), _table_of(self.predictive, tail)
        else:
            shape, table = self._shape(tail), None
            tail = tail.expand(shape).reshape(-1)
        scale, ratio = integrals.held_ratio(self._scale, self.noise)
        ratio, standard = ratio.expand(shape).reshape(-1), self.predictive.standardized()
        x = denoised_quantile(standard, ratio, shape, tail) if table is None else table(ratio)
        return x.view(shape) * scale


def _table_of(predictive: PiecewisePredictive, tail: float) -> RatioTable | None:
    """Return a table of the ``tail`` quantile as a function of the noise ratio, or None.

    The result is None unless many points share one distribution, because distributions that differ
    between points change with each call and the table would not be used again. It is also None if
    the table is not exact. Knots and masses are the key of the cache. Therefore the result is None
    too if they require gradients, or are on a GPU, from which they would be read back.
    """
    form, standard = predictive.form, predictive.standardized()
    numbers = standard.finite_knots, standard.masses
    is_common = predictive.is_expanded or form.stretched
    if not (is_common and form.covered and standard.batch_shape.numel() == 1):
        return None
    if any(v.requires_grad or v.device.type != "cpu" for v in numbers):
        return None
    knots, masses = (tuple(v.flatten().tolist()) for v in numbers)
    table = _table_by_numbers(knots, masses, form, tail)
    return table if table.is_exact else None


@cached_constant
def _table_by_numbers(
    knots: tuple[float, ...], masses: tuple[float, ...], form: PiecewiseForm, tail: float
) -> RatioTable:
    """Make the table of `_table_of`, which takes as long as two batches of 512 quantiles."""
    as_row = partial(torch.tensor, dtype=torch.float64, device=torch.device("cpu"))
    standard = PiecewisePredictive.from_form(as_row(knots), as_row(masses), form)
    return RatioTable(lambda r: denoised_quantile(standard, r, r.shape, tail))
