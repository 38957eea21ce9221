r"""`Prediction`: the predictive distribution of an outcome at each point, for models of all kinds.

Every model is described in the same way, in the space of its *targets* ``t``, such as standardised
outcomes. A model consists of one or more members with equal weights:

* Each member ``s`` has the objective ``f ~ N(mean_s, variance_s)`` and ``t = f + N(0, noise_s)``.
* The normal score of an observation is ``z = Phi^-1(F(t))``, with ``F`` the cdf of ``t`` under the
  mixture of members.
* A calibrator gives the ``predictive`` distribution of ``z``.
* An increasing `OutcomeMap` maps ``t`` to the outcome ``y``.

An exact Gaussian process has one member, and a fully Bayesian model has many. ``Standardize`` gives
an affine map, and ``Log`` gives a nonlinear map. If only the cdf ``F`` of a posterior is available,
the mean is 0, the variance is 1, and the map is ``F^-1(Phi(t))``.
"""

from __future__ import annotations

import math
from copy import copy
from functools import cached_property
from statistics import NormalDist
from typing import Any, NamedTuple, Self

import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from gpytorch.settings import min_variance
from torch import Tensor

from botorch_calib._validation import check_number, check_open_unit, in_double
from botorch_calib.distributions.denoised_mixture import DenoisedMixture
from botorch_calib.distributions.denoised_piecewise import SmoothedPredictive, UnsmoothedPredictive
from botorch_calib.distributions.mixture_scores import (
    mixture_quantile,
    mixture_score,
    score_of_tails,
)
from botorch_calib.distributions.outcome_quadrature import rule_above
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.posteriors.outcome_maps import Affine, OutcomeMap

MEMBER_DIM = -3  # dimension of members in moments and samples, as in BoTorch's ensembles
#: Values of the option ``excess``: the source of calibrated spread beyond the model's own spread.
EXCESS = ("noise", "objective")
# Smallest variance of the objective, so that the derivative of its root stays finite. It is the
# default of BoTorch's analytic acquisition functions, which do not export it.
MIN_VARIANCE = 1e-12
# Cap on absolute targets. Derivatives contain the cube of a target divided by the smallest standard
# deviation, which must not overflow.
_FAR = 1e90
_LEAST_NOISE = 1e-200  # least noise variance, so that the derivative of its root is finite
_CHUNK = 2**14  # number of quantiles (levels times points) that are computed together
# Normal scores at which the exponential growth of a map is measured, and the cap on its rate
_FAR_OUT, _MOST_GROWTH = (-8.0, -7.0, -6.0, 6.0, 7.0, 8.0), 12.0
_GREATEST = 1e300  # outcomes are clamped to this range
# Quadrature nodes on a panel. `_COARSE` is for improvement, which a search evaluates many times,
# and `_FINE` for moments.
_FINE, _COARSE = 16, 12


def usual_least(dtype: torch.dtype) -> float:
    """Return the limit to which smaller variances are raised if targets are of order 1."""
    return float(max(min_variance.value(dtype), MIN_VARIANCE))


class Spread(NamedTuple):
    """Location and scale of an observation, ``batch_shape x q x 1`` each.

    ``center`` and ``deviation`` are the mean and the standard deviation of a Gaussian observation.
    For other observations they are the median, and half of the distance between the quantiles at
    ``Phi(1)`` and ``Phi(-1)``. The squares of the last two fields add up to ``deviation**2``.
    """

    center: Tensor
    deviation: Tensor
    of_objective: Tensor  # the part of the deviation that more data would reduce
    of_noise: Tensor


class Prediction:
    """Distributions of the objective ``f`` or of observations, at ``batch_shape x q`` points.

    Results have the shape ``batch_shape x q x 1``, and values are in units of the outcome. The
    arguments ``value``, ``z`` and ``best_f`` are numbers or tensors. A tensor of two or more
    dimensions broadcasts against ``batch_shape x q x 1``. A vector of ``k != 1`` numbers adds a
    leading dimension ``k`` to the result. In methods, ``f`` is the predicted quantity: the
    objective, or an observation if ``objective`` is False.

    Let the targets ``t`` have the mean ``mu``, and let ``v`` and ``n`` be the variances of the
    objective and of the noise. Given the density ``p(t)`` of calibrated targets, the objective has
    the marginals ``f~ ~ int N(f; mu + a (t - mu), a n) p(t) dt`` with ``a = v / (v + n)``
    [Kim2024locbo, eq. 30], in closed form; for ensembles see `DenoisedMixture`. Quantiles and
    probabilities are exact under a nonlinear map too. Moments and improvement under a nonlinear map
    are integrals by differentiable quadrature, accurate to about 1e-5 in both tails, and to 1 % if
    the improvement is concentrated next to a kink that `OutcomeMap.kinks` does not report. If the
    map grows so fast that a moment does not exist, the result is the integral over a finite range.

    Args:
        mean: Means of the targets, ``batch_shape x q x 1``; with ``members``, ``batch_shape x
            num_members x q x 1``.
        variance: Positive variances of the objective in the space of the targets, with the same
            shape as ``mean``.
        noise: Noise variances of the targets, broadcasting to the shape of ``mean``; None without
            noise.
        inputs: The points in the form that calibrators take, ``batch_shape x q x d``.
        outcome_map: Map from targets to outcomes (default: the identity).
        predictive: Distribution of normal scores, broadcasting to ``batch_shape x q x 1``; None for
            the model's own distribution.
        objective: Whether the prediction is of the objective; if not, it is of an observation.
        excess: ``"noise"`` or ``"objective"``: see `CalibratedPosterior`.
        members: Whether ``mean`` has a dimension of members, which have equal weights.
        of_order_one: Whether targets are of order 1, as in a model with standardised outcomes.
            If so, smaller variances are raised to the minimum that BoTorch and GPyTorch use.
    """

    #: Precision of the results; computations are in float64.
    dtype: torch.dtype = torch.double
    #: Shape of the results, ``batch_shape x q x 1``.
    shape: torch.Size

    def __init__(
        self,
        mean: Tensor,
        variance: Tensor,
        noise: Tensor | None = None,
        inputs: Tensor | None = None,
        outcome_map: OutcomeMap | None = None,
        predictive: PiecewisePredictive | None = None,
        objective: bool = True,
        excess: str = "noise",
        members: bool = False,
        of_order_one: bool = False,
    ) -> None:
        self.dtype = mean.dtype
        self.target_mean = mean.double()
        least = usual_least(mean.dtype) if of_order_one else 0.0
        self.target_variance = variance.double().clamp_min(least)
        # A view of a parameter requires gradients even under `torch.no_grad`, so it is detached.
        noise = noise if noise is None or torch.is_grad_enabled() else noise.detach()
        self.target_noise = None if noise is None else noise.double()
        self.inputs, self.members = inputs, members
        self.outcome_map = Affine() if outcome_map is None else outcome_map
        self.predictive, self.objective, self.excess = predictive, objective, excess
        shape = mean.shape
        self.shape = torch.Size([*shape[:-3], *shape[-2:]]) if members else shape

    @classmethod
    def of_targets(cls, *moments: Any, **settings: Any) -> Self:
        """Make an object of this class, without checks, from the arguments of `Prediction`."""
        self = cls.__new__(cls)
        Prediction.__init__(self, *moments, **settings)
        return self

    @property
    def device(self) -> torch.device:
        return self.target_mean.device

    # ------------------------------------------------------------ predictions made from this one

    def _with(self, **changes: object) -> Self:
        twin = copy(self)
        kind = type(self)
        for name in [*vars(twin)]:
            if isinstance(getattr(kind, name, None), cached_property):
                del twin.__dict__[name]
        twin.__dict__.update(changes)
        return twin

    def corrected(self, predictive: PiecewisePredictive | None) -> Self:
        """Return the prediction with another distribution of scores; None for the model's own."""
        return self._with(predictive=predictive)

    def of_observation(self) -> Self:
        """Return the prediction of an observation."""
        return self._with(objective=False) if self.objective else self

    def affine(self, weight: float, offset: float = 0.0) -> Self:
        """Return the prediction of ``weight y + offset`` for outcomes ``y``.

        A weight of -1 turns minimisation into maximisation.

        Raises:
            InputDataError: If ``weight`` is 0.
        """
        weight, offset = check_number("weight", weight), check_number("offset", offset)
        if weight == 0.0:
            raise InputDataError("`weight` must not be 0.")
        changes: dict[str, object] = {"outcome_map": self.outcome_map.affine(weight, offset)}
        if weight < 0.0:
            mirrored = None if self.predictive is None else self.predictive.mirrored()
            changes |= {"target_mean": -self.target_mean, "predictive": mirrored}
        return self._with(**changes)

    # ------------------------------------------------------------ scores of observations

    def score(self, value: Tensor | float) -> Tensor:
        """Return the normal scores ``Phi^-1(P(y <= value))`` of observations.

        Scores are exact from -37 to 37, although the probability rounds to 1 for scores above 8.2.
        """
        z = self.own_score(value)
        if self._corrects_nothing:
            return z
        predictive = self._predictive
        return score_of_tails(predictive.cdf(z), predictive.mirrored().cdf(-z))

    def own_score(self, value: Tensor | float) -> Tensor:
        """Return normal scores under the uncalibrated model, from which calibrators learn."""
        t = self.outcome_map.latent(self._double("value", value))
        if self.members:
            return mixture_score(t, *self._members_first(self.target_mean, self._total))
        return (t - self.target_mean) / self._total

    def at_score(self, z: Tensor | float) -> Tensor:
        """Return observations with the normal scores ``z``, the inverse of `score`."""
        z = self._double("z", z)
        z = z if self._corrects_nothing else self._predictive.transport(z)
        if self.members:
            t = mixture_quantile(z, *self._members_first(self.target_mean, self._total))
        else:
            t = self.target_mean + self._total * z
        return self.outcome_map.outcome(t).to(self.dtype)

    # ------------------------------------------------------------ probabilities and quantiles

    def cdf(self, value: Tensor | float) -> Tensor:
        """Return ``P(f <= value)``."""
        return self._distribution.cdf(self._latent("value", value)).to(self.dtype)

    def density(self, value: Tensor | float) -> Tensor:
        """Return the density of ``f`` at ``value``; it is 0 outside the range of the outcome."""
        y = self._double("value", value)
        if isinstance(self.outcome_map, Affine):
            log_density = self._distribution.log_prob(self._latent("value", value))
            slope = self.outcome_map.scaled(torch.ones_like(y), power=-1)
            return (log_density.exp() * slope).to(self.dtype)
        y = y.expand(torch.broadcast_shapes(y.shape, self.shape))
        with torch.enable_grad():
            y = y if y.requires_grad else y.clone().requires_grad_()
            latent = self.outcome_map.latent(y)
            (slope,) = torch.autograd.grad(latent.sum(), y, create_graph=True)
        density = self._distribution.log_prob(latent.clamp(-_FAR, _FAR) - self._origin).exp()
        density = (density * slope).masked_fill(~latent.isfinite(), 0.0)
        return (density if torch.is_grad_enabled() else density.detach()).to(self.dtype)

    def quantile(self, value: Tensor | float) -> Tensor:
        """Return quantiles, which are differentiable.

        Args:
            value: Levels in (0, 1): a number, or a tensor of any shape. As in BoTorch, the shape of
                several levels comes first in the shape of the result; a single level adds no
                dimension. The check of a tensor synchronizes with its device.
        """
        if isinstance(value, (int, float)):
            check_open_unit("value", value)
            return self._out(self._distribution.quantile(float(value)))
        levels = in_double("value", value, self.device)
        if levels.numel() == 1:
            return self.quantile(float(levels))
        if not ((levels > 0.0) & (levels < 1.0)).all():
            raise InputDataError(f"`value` must contain levels in (0, 1), got {value}.")
        # Levels are split, since many at once need much memory, and one at a time many operations.
        size = max(_CHUNK // max(self.shape.numel(), 1), 1)
        parts = levels.view(-1, *[1] * len(self.shape)).split(size)
        values = torch.cat([self._out(self._distribution.quantile(part)) for part in parts])
        return values.view(*levels.shape, *values.shape[1:])

    def log_probability_between(self, lower: float | None, upper: float | None) -> Tensor:
        """Return ``log P(lower <= f <= upper)``, accurate in both tails.

        Args:
            lower: Lower limit, below ``upper``; None for minus infinity.
            upper: Upper limit; None for infinity.
        """
        if lower is None and upper is None:
            return self.target_mean.new_zeros(self.shape, dtype=self.dtype)
        named = {"lower": lower, "upper": upper}.items()
        ends = [None if end is None else self._latent(name, end) for name, end in named]
        # Rounded masses may add up to slightly more than 1, so the logarithm is clamped at 0.
        return self._distribution.log_between(*ends).clamp(max=0.0).to(self.dtype)

    def probability_of_improvement(self, best_f: Tensor | float) -> Tensor:
        """Return ``P(f > best_f)``."""
        return self._distribution.log_survival(self._latent("best_f", best_f)).exp().to(self.dtype)

    @cached_property
    @torch.enable_grad()  # the distribution is cached, and a later caller may need its graph
    def _distribution(self) -> DenoisedMixture | SmoothedPredictive | UnsmoothedPredictive:
        """The distribution of the objective or of observed targets, minus `_origin`, in float64."""
        predictive, variance, noise = self._predictive, self.target_variance, self.target_noise
        if self.members:
            noise = torch.zeros_like(variance) if noise is None else noise
            moments = torch.broadcast_tensors(self.target_mean, variance, noise)
            mean, variance, noise = self._members_first(*moments)
            growth = None if self._growth is None else self._growth[0].movedim(MEMBER_DIM, 0)
            return DenoisedMixture(mean, variance, noise, predictive, self.objective, growth)
        if not self.objective or noise is None:
            return UnsmoothedPredictive(predictive, self._total)
        if predictive.is_standard_normal:
            return UnsmoothedPredictive(predictive, variance.sqrt())
        inverse = self._total.reciprocal()
        unit = variance * inverse
        # The standard deviation of f given t
        rest = (noise.clamp(min=_LEAST_NOISE) * (unit * inverse)).sqrt()
        if self._growth is not None:
            growth, spread = self._growth
            unit, rest = unit * (growth / spread), rest * (growth / spread).sqrt()
        return SmoothedPredictive(predictive, rest, unit)

    @property
    def _mixture(self) -> DenoisedMixture:
        assert isinstance(self._distribution, DenoisedMixture)
        return self._distribution

    @cached_property
    @torch.enable_grad()
    def _predictive(self) -> PiecewisePredictive:
        """The distribution of normal scores in float64; standard normal without calibration."""
        if self.predictive is None:
            return PiecewisePredictive.gaussian(dtype=torch.double, device=self.device)
        return self.predictive.to(torch.double)

    @property
    def _corrects_nothing(self) -> bool:
        return self.predictive is None or self.predictive.is_standard_normal

    @cached_property
    @torch.enable_grad()
    def _total(self) -> Tensor:
        """Standard deviations of observed targets under each member."""
        noise = self.target_noise
        return (self.target_variance if noise is None else self.target_variance + noise).sqrt()

    @cached_property
    @torch.enable_grad()
    def _growth(self) -> tuple[Tensor, Tensor] | None:
        """The ratios ``v' / v`` and ``tau^2``, at least 1, if ``excess="objective"``; else None.

        See `CalibratedPosterior` for the symbols. If ``z`` is normal, ``v'`` is the fixed point of
        the EM algorithm that removes the noise from ``t``. The first step of this algorithm is
        denoising with the process's gain. The formula ``v' / v = 1 + (tau^2 - 1) (1 + n / v)``
        avoids cancellation.
        """
        is_own = not self.objective or self.excess == "noise" or self._corrects_nothing
        if is_own or self.target_noise is None:
            return None
        spread = self._predictive.variance.clamp(min=1.0)
        has_points = self.members and spread.dim() > 2
        spread = spread.unsqueeze(MEMBER_DIM) if has_points else spread
        return 1.0 + (spread - 1.0) * (1.0 + self._noise_ratio.square()), spread

    @property
    def _noise_ratio(self) -> Tensor:
        """Standard deviation of the noise divided by the standard deviation of the objective."""
        if self.target_noise is None:
            return torch.zeros_like(self.target_variance)
        return (self.target_noise.clamp(min=_LEAST_NOISE) / self.target_variance).sqrt()

    @staticmethod
    def _members_first(*values: Tensor) -> list[Tensor]:
        return [value.movedim(MEMBER_DIM, 0) for value in values]

    @property
    def _origin(self) -> Tensor | float:
        return 0.0 if self.members else self.target_mean

    def _out(self, value: Tensor) -> Tensor:
        """Return outcomes in the dtype of results, given targets minus `_origin`."""
        return self.outcome_map.outcome(self._origin + value).to(self.dtype)

    def _latent(self, name: str, value: Tensor | float) -> Tensor:
        """Return finite targets minus `_origin`, given outcomes; ``name`` is for error messages."""
        y = self._double(name, value).clamp(-_GREATEST, _GREATEST)
        return self.outcome_map.latent(y).clamp(-_FAR, _FAR) - self._origin

    def _double(self, name: str, value: Tensor | float) -> Tensor:
        """Return ``value`` in float64 with at least two dimensions; a vector is along the first."""
        number = in_double(name, value, self.device)
        if number.dim() == 1 and len(number) != 1:
            return number.view(-1, *[1] * len(self.shape))
        return number if number.dim() > 1 else number.view(1, 1)

    # ------------------------------------------------------------ expectations

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return the mean and the variance, which share one computation."""
        if isinstance(self.outcome_map, Affine):
            mean, variance = self._distribution.moments()
            return self._out(mean), self.outcome_map.scaled(variance, power=2).to(self.dtype)
        everywhere = self.target_mean.new_full((1, 1), -math.inf)
        values, log_weights = self._rule(everywhere, _FINE, powers=2.0)
        log_weights = log_weights.log_softmax(dim=0)  # normalises the total mass
        mean = (log_weights.exp() * values).sum(dim=0)
        # Differences times roots of weights, since a weight of 0 times an infinite square is NaN
        variance = ((0.5 * log_weights).exp() * (values - mean)).square().sum(dim=0)
        return mean.to(self.dtype), variance.to(self.dtype)

    def log_expected_improvement(self, best_f: Tensor | float) -> Tensor:
        """Return ``log E(f - best_f)+``.

        Args:
            best_f: Value to improve upon (maximisation). An infinite value gives an infinite result
                of the opposite sign.
        """
        return self._log_improvement(best_f).to(self.dtype)

    def expected_improvement(self, best_f: Tensor | float) -> Tensor:
        """Return ``E(f - best_f)+``; see `log_expected_improvement`."""
        # `log_expected_improvement` is not used, since it may be rounded to single precision.
        return self._log_improvement(best_f).exp().to(self.dtype)

    def conditional_mean_below(self, level: float) -> Tensor:
        """Return the expected shortfall (conditional value at risk) ``E[f | f <= Q(level)]``.

        For the mean of the largest values, call this method on ``affine(-1.0)`` and negate the
        result.

        Args:
            level: Probability of the tail below the quantile ``Q(level)``, in (0, 1).
        """
        check_open_unit("level", level)
        if isinstance(self.outcome_map, Affine):
            return self._out(self._distribution.mean_below(level))
        # As in `mean_below`, a small error of q has a second-order effect. If q is at a knot, the
        # shift moves it off the knot, so that rounding does not decide which pieces are below q.
        latent = self._distribution.quantile(level) + self._origin + 1e-8 * self._total
        q = self.outcome_map.outcome(latent)
        below = self.affine(-1.0)._log_improvement(-q, _FINE).exp()
        return (q - below / level).to(self.dtype)

    def _log_improvement(self, best_f: Tensor | float, order: int = _COARSE) -> Tensor:
        """Return `log_expected_improvement` in float64."""
        best = self._double("best_f", best_f)
        if isinstance(self.outcome_map, Affine):
            near = best.clamp(-_FAR, _FAR)
            log_ei = self._distribution.log_excess(self.outcome_map.latent(near) - self._origin)
            log_ei = self.outcome_map.scaled(torch.ones_like(near)).log() + log_ei
            # If best is far below the distribution, the improvement is -best; if far above, 0.
            return torch.where(best != near, (-best).clamp(min=0.0).log(), log_ei)
        values, log_weights = self._rule(self.outcome_map.latent(best), order)
        # `logsumexp` would need logarithms of `values - best`, a third of the total time.
        largest = log_weights.detach().amax(dim=0)
        total = ((log_weights - largest).exp() * (values - best)).sum(dim=0)
        log_ei = total.clamp(min=torch.finfo(total.dtype).tiny).log() + largest
        # An infinite threshold makes the logarithm infinite, with the opposite sign.
        return torch.where(best.isinf(), -best, log_ei)

    def _rule(self, threshold: Tensor, order: int, powers: float = 1.0) -> tuple[Tensor, Tensor]:
        """Return a quadrature rule above ``threshold``: outcomes and log weights, ``N x shape``.

        The rule integrates the outcome raised to the power ``powers``; ``order`` is its order.
        """
        if isinstance(self._distribution, DenoisedMixture):
            raise UnsupportedError(
                "The mean and the improvement of an ensemble need an affine outcome transform, or "
                "none. Quantiles, probabilities and samples are available with any transform."
            )
        origin, kinks = self.target_mean.detach(), self.outcome_map.kinks(threshold)
        if kinks is not None:
            kinks = torch.stack([kink - origin for kink in kinks])
        growth = powers * self._growth_of_map()
        points, log_weights = rule_above(
            self._distribution, threshold.detach() - origin, growth, order, kinks
        )
        # Outcomes are clamped, as an infinite outcome times a weight of 0 would be NaN.
        outcomes = self.outcome_map.outcome(self.target_mean + points)
        return outcomes.clamp(-_GREATEST, _GREATEST), log_weights

    @torch.no_grad()
    def _growth_of_map(self) -> Tensor:
        """Return the exponential growth rate of the map, in the tail where the rate is larger."""
        far = torch.stack([self.target_mean + k * self._total for k in _FAR_OUT])
        rises = self.outcome_map.outcome(far).diff(dim=0)
        slope = torch.maximum(rises[0] / rises[1], rises[-1] / rises[-2]).log()
        return slope.nan_to_num(0.0, posinf=0.0).clamp(0.0, _MOST_GROWTH) / self._total

    # ------------------------------------------------------------ scales

    @property
    def is_gaussian(self) -> bool:
        """Whether the model's own distribution of outcomes is normal."""
        return isinstance(self.outcome_map, Affine) and not self.members

    @property
    def unit_of_scores(self) -> Tensor:
        """Standard deviation of an observation under a Gaussian model, ``batch_shape x q x 1``."""
        assert isinstance(self.outcome_map, Affine)
        return self.outcome_map.scaled(self._total)

    def spread(self) -> Spread:
        """Return the location and scale of an observation, and the two parts of the scale."""
        noise = self.target_noise
        if isinstance(self.outcome_map, Affine) and not self.members:
            zero = torch.zeros_like(self.target_variance)
            parts = self.target_variance, zero if noise is None else noise.expand_as(zero)
            sizes = (self.outcome_map.scaled(each.sqrt()) for each in parts)
            center = self.outcome_map.outcome(self.target_mean)
            return Spread(center, self.unit_of_scores, *sizes)
        y = self.of_observation()
        whole = own = 0.5 * (y.at_score(1.0) - y.at_score(-1.0)).double()
        if noise is not None:
            f = self._with(objective=True)
            low, high = (f.quantile(NormalDist().cdf(k)).double() for k in (-1.0, 1.0))
            own = torch.minimum(whole, 0.5 * (high - low))
        # The clamp avoids 0, where the derivative of the root is infinite.
        rest = (whole.square() - own.square()).clamp_min(torch.finfo(torch.double).tiny).sqrt()
        return Spread(y.at_score(0.0), (own.square() + rest.square()).sqrt(), own, rest)
