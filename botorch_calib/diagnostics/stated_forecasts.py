"""`StatedForecasts`: what scores need of the distributions that were stated of observations."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.distributions.scoring import crps, interval_score
from botorch_calib.posteriors import CalibratedPosterior, StatedPosterior

# Levels by whose quantiles the CRPS of any distribution is found
_NUM_LEVELS = 200


class StatedForecasts(NamedTuple):
    """Distributions that were stated of ``n`` observations, seen from these."""

    pits: Tensor  # n, stated probabilities of a value below the observed one
    covered: Tensor  # n, whether it lay inside the central 1 - alpha interval
    # Where more than the probabilities is known: the ``width`` of the central interval, the
    # ``deviation``, the ``interval_score`` and the ``crps``, n each, in units of the outcome
    sizes: dict[str, Tensor] = {}

    @classmethod
    def of_pits(cls, pits: Tensor, alpha: float) -> StatedForecasts:
        """Distributions of which nothing but the PITs is known."""
        pits = pits.double()
        return cls(pits, (alpha / 2 <= pits) & (pits <= 1 - alpha / 2))

    @classmethod
    def of_residuals(
        cls, predictive: PiecewisePredictive | None, residuals: Tensor, unit: Tensor, alpha: float
    ) -> StatedForecasts:
        """Distributions (None: normal) of ``n`` residuals in standard deviations, ``unit`` each."""
        if predictive is None:
            predictive = PiecewisePredictive.gaussian((len(unit), 1), device=unit.device)
        # CRPS and the widths scale with the outcome: computed in units of z, then multiplied.
        predictive, unit, z = predictive.to(torch.double), unit.double(), residuals.double()
        z = z.view(-1, *[1] * (len(predictive.batch_shape) - 1))
        lower, upper = (predictive.quantile(p).expand(z.shape) for p in (alpha / 2, 1 - alpha / 2))
        sizes = {
            "width": upper - lower,
            "deviation": predictive.variance.sqrt().expand(z.shape),
            "interval_score": interval_score(lower, upper, z, alpha),
            "crps": crps(predictive, z),
        }
        return cls(
            predictive.cdf(z).reshape(-1),
            ((lower <= z) & (z <= upper)).reshape(-1),
            {name: unit * size.reshape(-1) for name, size in sizes.items()},
        )

    @classmethod
    def of_posterior(cls, posterior: StatedPosterior, Y: Tensor, alpha: float) -> StatedForecasts:
        """A posterior at ``n x 1 x d`` or ``n x d`` of observations that were ``Y``, ``n x 1``."""
        if type(posterior) is CalibratedPosterior:
            base = posterior.base_posterior.mean
            unit = posterior.observed_deviation.expand(base.shape).reshape(-1)
            z = (Y.double() - base.squeeze(-1).double()).reshape(-1) / unit
            return cls.of_residuals(posterior.predictive, z, unit, alpha)
        ends = (posterior.quantile(alpha / 2), posterior.quantile(1 - alpha / 2))
        pits = posterior.cdf(Y.reshape(ends[0].shape)).reshape(-1).double()
        lower, upper, y = (values.reshape(-1).double() for values in (*ends, Y))
        # CRPS = int_0^1 2 (1{y <= q(p)} - p) (q(p) - y) dp, by the midpoint rule: the integrand is
        # continuous, with a kink where it is zero.
        levels = (torch.arange(_NUM_LEVELS, dtype=torch.double) + 0.5) / _NUM_LEVELS
        quantiles = posterior.quantile(levels).reshape(_NUM_LEVELS, -1).double()
        p = levels.to(quantiles).unsqueeze(-1)
        pinball = 2 * ((y <= quantiles).double() - p) * (quantiles - y)
        # BoTorch's ensembles call the variances of their members `variance`.
        variance = getattr(posterior, "mixture_variance", None)
        variance = posterior.variance if variance is None else variance
        sizes = {
            "width": upper - lower,
            "deviation": variance.reshape(-1).double().sqrt(),
            "interval_score": interval_score(lower, upper, y, alpha),
            "crps": pinball.mean(dim=0),
        }
        return cls(pits, (lower <= y) & (y <= upper), sizes)
