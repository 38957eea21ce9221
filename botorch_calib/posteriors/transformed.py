"""`TransformedOutcomePosterior`: a calibrated posterior seen through an increasing map."""

from __future__ import annotations

import math
from functools import partial

import torch
from botorch.exceptions.errors import InputDataError
from botorch.posteriors import GPyTorchPosterior, TransformedPosterior
from torch import Tensor

from botorch_calib._validation import check_number, check_open_unit, in_double
from botorch_calib.posteriors.base import StatedPosterior
from botorch_calib.posteriors.calibrated import CalibratedPosterior
from botorch_calib.posteriors.outcome_maps import OutcomeMap

# Deviations at which the growth of a map is measured, and the largest growth that is followed
_FAR_OUT = (-8.0, -7.0, -6.0, 6.0, 7.0, 8.0)
_MOST_GROWTH = 12.0
_GREATEST = 1e300  # to which outcomes are held
# Nodes on a panel: for moments, and for improvement, which a search evaluates again and again
_FINE, _COARSE = 16, 12


class TransformedOutcomePosterior(StatedPosterior, TransformedPosterior):
    """Posterior of ``g(f)``, with ``f`` of a `CalibratedPosterior` and ``g`` increasing.

    Quantiles and samples are those of ``f``, mapped by ``g``, and probabilities those of ``f`` at
    ``g^-1``: all of them are exact. Moments and expected improvement are integrals of ``g`` under
    the distribution of ``f``, by differentiable quadrature: accurate to about 1e-5 in either tail,
    and to 1 % where all of the improvement is beside the end of a root, or beside a kink that the
    map does not tell (`OutcomeMap.kinks`). (BoTorch's ``TransformedPosterior``, whose samples these
    are, has moments at most, and analytic improvement takes them for those of a normal
    distribution.)

    Where ``g`` grows so fast that a moment does not exist, a finite part of it is stated.

    Args:
        posterior: Posterior of ``f``, ``batch_shape x q x 1``.
        outcome_map: The map ``g``.

    Example:
        >>> transform = ChainedOutcomeTransform(log=Log(), standardize=Standardize(1))
        >>> gp = SingleTaskGP(X, Y.exp(), outcome_transform=transform)
        >>> model = CalibratedModel.from_history(gp, LocalizedConformal(0.2))
        >>> quantiles = model.posterior(X.unsqueeze(-2)).quantile(0.9)  # above 0
    """

    _not_normal = (
        "The posterior of a transformed outcome is not multivariate normal, so it has no "
        "`distribution` and no `mvn`: ends of intervals are its `quantile`s. That in the space "
        "of the model's targets is `posterior.posterior`."
    )

    def __init__(self, posterior: CalibratedPosterior, outcome_map: OutcomeMap) -> None:
        super().__init__(posterior, partial(_outcomes, outcome_map, posterior.dtype))
        self.posterior = posterior
        self.outcome_map = outcome_map

    # ------------------------------------------------------------ joint samples

    @property
    def batch_shape(self) -> torch.Size:
        return self.posterior.batch_shape

    @property
    def path_posterior(self) -> GPyTorchPosterior:
        """The Gaussian posterior that paths are drawn from, see `CalibratedPosterior`."""
        return self.posterior.path_posterior

    def rsample_from_cached_root(
        self, sample_shape: torch.Size, base_samples: Tensor, baseline_L: Tensor
    ) -> Tensor:
        """The samples of `CalibratedPosterior.rsample_from_cached_root`, mapped."""
        return self._sample_transform(
            self.posterior.rsample_from_cached_root(sample_shape, base_samples, baseline_L)
        )

    # ------------------------------------------------------------ marginals

    def cdf(self, value: Tensor | float) -> Tensor:
        return self.posterior.cdf(self._latent("value", value))

    def density(self, value: Tensor | float) -> Tensor:
        """Density of each marginal, 0 outside the range of ``g``; ``value`` is as in `cdf`."""
        value = self._outcomes("value", value)
        value = value.expand(torch.broadcast_shapes(value.shape, self._extended_shape()))
        with torch.enable_grad():
            value = value if value.requires_grad else value.clone().requires_grad_()
            latent = self.outcome_map.latent(value)
            (slope,) = torch.autograd.grad(latent.sum(), value, create_graph=True)
        density = (self.posterior.density(latent) * slope).masked_fill(~latent.isfinite(), 0.0)
        return (density if torch.is_grad_enabled() else density.detach()).to(self.dtype)

    def quantile(self, value: Tensor | float) -> Tensor:
        return self._sample_transform(self.posterior.quantile(value))

    def at_score(self, z: Tensor) -> Tensor:
        return self._sample_transform(self.posterior.at_score(z))

    def log_probability_between(self, lower: float | None, upper: float | None) -> Tensor:
        named = {"lower": lower, "upper": upper}
        ends = [None if end is None else self._latent(name, end) for name, end in named.items()]
        return self.posterior.log_probability_between(*ends)

    def probability_of_improvement(self, best_f: Tensor | float) -> Tensor:
        return self.posterior.probability_of_improvement(self._latent("best_f", best_f))

    # ------------------------------------------------------------ integrals

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, ``batch_shape x q x 1``, by quadrature."""
        everywhere = self.posterior.mean.new_full((1, 1), -math.inf, dtype=torch.float64)
        values, log_weights = self._rule(everywhere, _FINE, powers=2.0)
        log_weights = log_weights.log_softmax(dim=0)  # which takes out the error of the rule
        mean = (log_weights.exp() * values).sum(dim=0)
        # Roots of the weights, as weights of zero times squares that overflow would be NaN
        variance = ((0.5 * log_weights).exp() * (values - mean)).square().sum(dim=0)
        return mean.to(self.dtype), variance.to(self.dtype)

    def conditional_mean_below(self, level: float) -> Tensor:
        check_open_unit("level", level)
        # q - E(q - g(f))+ / level, in which an error of the quantile enters squared
        latent = self.posterior.quantile(level).double()
        # Not at a knot of the distribution, where rounding would tell on which side each part lies
        latent = latent + 1e-8 * self.posterior.observed_deviation
        q = self.outcome_map.outcome(latent)
        below = self.affine(-1.0)._log_improvement(-q, _FINE).exp()
        return (q - below / level).to(self.dtype)

    def _log_improvement(self, best_f: Tensor | float, order: int = _COARSE) -> Tensor:
        best = self._outcomes("best_f", best_f)
        values, log_weights = self._rule(self.outcome_map.latent(best), order)
        # Not `logsumexp`, whose logarithms and exponentials cost a third of all
        largest = log_weights.detach().amax(dim=0)
        total = ((log_weights - largest).exp() * (values - best)).sum(dim=0)
        log_ei = total.clamp(min=torch.finfo(total.dtype).tiny).log() + largest
        # Where the threshold itself is infinite, so is the improvement, or its logarithm.
        return torch.where(best.isinf(), -best, log_ei)

    def _rule(self, threshold: Tensor, order: int, powers: float = 1.0) -> tuple[Tensor, Tensor]:
        """Outcomes above that of ``threshold``, a latent value, and log weights, ``N x shape``."""
        growth = powers * self._growth()
        kinks = self.outcome_map.kinks(threshold)
        latent, log_weights = self.posterior.rule_above(threshold.detach(), growth, order, kinks)
        # Held to finite numbers, as an infinite one would be NaN times a weight of zero
        return self.outcome_map.outcome(latent).clamp(-_GREATEST, _GREATEST), log_weights

    @torch.no_grad()
    def _growth(self) -> Tensor:
        """Slope of the logarithm of the map's slope far out, the larger one of both sides."""
        location, deviation = self.posterior.location, self.posterior.observed_deviation
        far = torch.stack([location + k * deviation for k in _FAR_OUT])
        rises = self.outcome_map.outcome(far).diff(dim=0)
        slope = torch.maximum(rises[0] / rises[1], rises[-1] / rises[-2]).log()
        return slope.nan_to_num(0.0, posinf=0.0).clamp(0.0, _MOST_GROWTH) / deviation

    # ------------------------------------------------------------ maps

    def affine(self, weight: float, offset: float = 0.0) -> TransformedOutcomePosterior:
        weight, offset = check_number("weight", weight), check_number("offset", offset)
        if weight == 0.0:
            raise InputDataError("`weight` must not be 0.")
        latent = self.posterior if weight > 0.0 else self.posterior.affine(-1.0)
        return TransformedOutcomePosterior(latent, self.outcome_map.affine(weight, offset))

    def _latent(self, name: str, value: Tensor | float) -> Tensor:
        return self.outcome_map.latent(self._outcomes(name, value))

    def _outcomes(self, name: str, value: Tensor | float) -> Tensor:
        """Outcomes in float64, with two dimensions at least; vectors lead, as in `cdf`."""
        value = in_double(name, value, self.device)
        if value.dim() == 1 and len(value) != 1:
            return value.view(-1, *[1] * len(self._extended_shape()))
        return value if value.dim() > 1 else value.view(1, 1)


def _outcomes(outcome_map: OutcomeMap, dtype: torch.dtype, latent: Tensor) -> Tensor:
    return outcome_map.outcome(latent).to(dtype)
