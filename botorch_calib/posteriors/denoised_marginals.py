r"""`DenoisedMarginals`: quantiles, probabilities and improvement of `CalibratedPosterior`."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor

from botorch_calib._validation import check_open_unit, check_tensor, in_double
from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive, UnsmoothedPredictive
from botorch_calib.distributions.expectations import rule_above
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.posteriors.base import StatedPosterior

# Beyond this, in units of the outcome, numbers are as good as infinite: in units of the smallest
# standard deviation, and of the noise beside it, cubes of them would overflow in derivatives.
_FAR = 1e90
_LEAST_NOISE = 1e-200  # variance; keeps the derivative of its root finite
_CHUNK = 2**14  # quantiles, at different levels, that are looked for together


class DenoisedMarginals(StatedPosterior):
    """The distributions of ``f~``, or of ``y``, at each point; see `CalibratedPosterior`.

    They are those of ``location + unit z + noise eps``, computed in float64, with ``z`` of the
    predictive distribution and ``eps`` standard normal.
    """

    location: Tensor  # the process's mean, in float64
    predictive: PiecewisePredictive
    noise_variance: Tensor
    denoise: bool
    excess: str
    _noiseless: bool  # whether the formulas without noise are taken

    def _set_up_marginals(self, mean: Tensor, variance: Tensor) -> None:
        """Find location, unit and noise from the process's moments, ``variance`` being positive."""
        variance, noise = variance.double(), self.noise_variance.double()
        self.location, self._variances = mean.double(), (variance, noise)
        # The factor of the paths and that of z, with `excess="objective"`
        self._stretch: tuple[Tensor, Tensor] | None = None
        # The distribution of f~ - location, at each point
        self._distribution: SmoothedPredictive | UnsmoothedPredictive
        if not self.denoise or self._noiseless:
            self._unit = self.observed_deviation
            self._distribution = UnsmoothedPredictive(self.predictive, self._unit)
            return
        inverse = (variance + noise).rsqrt()
        self._unit = variance * inverse
        # The standard deviation of f~ given y
        deviation = (noise.clamp(min=_LEAST_NOISE) * (self._unit * inverse)).sqrt()
        if self.excess == "objective":
            growth, spread = growth_of_variance(self.predictive, self._noise_ratio.square())
            tau, root = spread.sqrt(), growth.sqrt()
            self._unit, deviation = self._unit * (growth / spread), deviation * (root / tau)
            self._stretch = root, tau
        self._distribution = SmoothedPredictive(self.predictive, deviation, self._unit)

    @cached_property
    def observed_deviation(self) -> Tensor:
        """The process's standard deviation ``sqrt(v + n)`` of an observation, in float64."""
        variance, noise = self._variances
        return (variance + noise).sqrt()

    @cached_property
    def _noise_ratio(self) -> Tensor:
        """Deviation of the noise over that of the objective."""
        variance, noise = self._variances
        return (noise.clamp(min=_LEAST_NOISE) / variance).sqrt()

    # ------------------------------------------------------------ moments and marginals

    def moments(self) -> tuple[Tensor, Tensor]:
        mean, variance = self._distribution.moments()
        return self._located(mean), variance.to(self.dtype)

    def cdf(self, value: Tensor | float) -> Tensor:
        return self._at(value, self._distribution.cdf)

    def density(self, value: Tensor | float) -> Tensor:
        return self._at(value, lambda x: self._distribution.log_prob(x).exp())

    def quantile(self, value: Tensor | float) -> Tensor:
        if isinstance(value, (int, float)):
            check_open_unit("value", value)
            return self._located(self._distribution.quantile(float(value)))
        try:
            levels = torch.as_tensor(value, dtype=torch.float64, device=self.location.device)
        except (TypeError, ValueError, RuntimeError):
            raise InputDataError(f"`value` must hold levels in (0, 1), got {value!r}.") from None
        if levels.numel() == 1:
            return self.quantile(float(levels))
        if not ((levels > 0.0) & (levels < 1.0)).all():
            raise InputDataError(f"`value` must hold levels in (0, 1), got {value}.")
        # So many at a time that operations are few, and memory is small
        size = max(_CHUNK // max(self.location.numel(), 1), 1)
        parts = levels.view(-1, *[1] * self.location.dim()).split(size)
        values = torch.cat([self._located(self._distribution.quantile(part)) for part in parts])
        return values.view(*levels.shape, *values.shape[1:])

    def at_score(self, z: Tensor) -> Tensor:
        distribution: Any = self._distribution
        if not hasattr(distribution, "at_score"):
            raise UnsupportedError(
                "`at_score` is of observations: take `posterior(X, observation_noise=True)`."
            )
        return self._located(distribution.at_score(check_tensor("z", z)))

    def _located(self, value: Tensor) -> Tensor:
        return (self.location + value).to(self.dtype)

    def conditional_mean_below(self, level: float) -> Tensor:
        check_open_unit("level", level)
        return self._located(self._distribution.mean_below(level))

    def _at(self, value: Tensor | float, function: Callable[[Tensor], Tensor]) -> Tensor:
        """A function of numbers from `location`, at ``value``."""
        value = in_double("value", value, self.location.device)
        if value.dim() == 1 and len(value) != 1:
            value = value.view(-1, *[1] * self.location.dim())
        return function(self._from_location("value", value)).to(self.dtype)

    # ------------------------------------------------------------ improvement

    def _log_improvement(self, best_f: Tensor | float) -> Tensor:
        best = in_double("best_f", best_f, self.location.device)
        near = best.clamp(-_FAR, _FAR)
        log_ei = self._distribution.log_excess(near - self.location)
        # So far below, the distribution is a point: the improvement is -best. So far above it is 0.
        return torch.where(best != near, (-best).clamp(min=0.0).log(), log_ei)

    def probability_of_improvement(self, best_f: Tensor | float) -> Tensor:
        best = self._from_location("best_f", best_f)
        return self._distribution.log_survival(best).exp().to(self.dtype)

    def log_probability_between(
        self, lower: Tensor | float | None, upper: Tensor | float | None
    ) -> Tensor:
        named = {"lower": lower, "upper": upper}.items()
        ends = [None if end is None else self._from_location(name, end) for name, end in named]
        # Masses that were rounded may add up to slightly more than 1.
        return self._distribution.log_between(*ends).clamp(max=0.0).to(self.dtype)

    def rule_above(
        self, threshold: Tensor, growth: Tensor, order: int, kinks: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Points ``f_i`` and ``log w_i`` with ``E[u(f~); f~ > c] = sum_i w_i u(f_i)``, in float64.

        For ``u`` that is 0 at the threshold and smooth but for ``kinks``; both are ``N x
        batch_shape x q x 1``. See `botorch_calib.distributions.expectations.rule_above`.

        Args:
            threshold: ``c``, in units of the outcome, which may be infinite; broadcasts against
                ``batch_shape x q x 1``.
            growth: Slope of ``log |u|`` far out, in the inverse unit of the outcome.
            order: Number of nodes on a panel.
            kinks: Where ``u`` has kinks, increasing, ``num x ...``, as ``c``.
        """
        location = self.location.detach()
        if kinks is not None:
            kinks = torch.stack([kink - location for kink in kinks])
        points, log_weights = rule_above(
            self._distribution, threshold - location, growth, order, kinks
        )
        return self.location + points, log_weights

    def _from_location(self, name: str, value: Tensor | float) -> Tensor:
        """Numbers from `location`; infinite ones are far out instead."""
        value = in_double(name, value, self.location.device)
        return value.clamp(-_FAR, _FAR) - self.location


def growth_of_variance(
    predictive: PiecewisePredictive, noise_over_variance: Tensor
) -> tuple[Tensor, Tensor]:
    """``v' / v`` and ``tau^2``, both at least 1, given ``n / v``.

    With a normal ``z`` of variance ``tau^2``, denoising by the gain of ``v`` is one step of the
    EM algorithm that takes noise of variance ``n`` out of ``y``, whose variance is
    ``tau^2 (v + n)``; ``v' = tau^2 (v + n) - n`` is its fixed point. In the form
    ``v' / v = 1 + (tau^2 - 1) (1 + n / v)`` nothing cancels.
    """
    spread = predictive.to(torch.float64).variance.clamp(min=1.0)
    return 1.0 + (spread - 1.0) * (1.0 + noise_over_variance), spread
