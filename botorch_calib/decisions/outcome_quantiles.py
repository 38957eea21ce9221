r"""Quantiles of the next outcome, as any model states them, widened by a factor.

The quantile with the normal score ``s`` is ``F_x^{-1}(Phi(s))``, ``F_x`` being the predictive
distribution of an observation at ``x``: ``mean + s deviation`` of a Gaussian process, the
calibrator's of a `CalibratedModel`, and elsewhere that of ``model.posterior(X,
observation_noise=True)``. What is pending does not count.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from botorch.exceptions.errors import BotorchError, UnsupportedError
from botorch.posteriors import Posterior
from torch import Tensor

from botorch_calib.models import CalibratedModel
from botorch_calib.models.inspection import (
    in_output_task,
    objective_variance,
    observation_noise_variance,
    observed_process,
    with_task_feature,
)
from botorch_calib.models.marginals import posterior_at
from botorch_calib.models.residuals import forecast_history
from botorch_calib.posteriors.single_points import SinglePointPosterior, is_gaussian

# Levels closer to 0 and 1 are the same numbers in double precision.
_FARTHEST = 8.0
# As many observations as the model itself counts for, and the largest factor; chosen on tuning
# seeds, as the constants in `budget`.
PRIOR_COUNT, MOST_FACTOR = 8.0, 2.0


class OutcomeQuantiles:
    """Quantiles and moments of an outcome at points ``b x 1 x d``; results are ``b``.

    Of a distribution that is not Gaussian, the mean is the median, and the deviation half of the
    way between the quantiles that are a standard deviation to either side in a Gaussian one.

    Args:
        model: A model of one outcome.
        X: The points.
    """

    def __init__(self, model: Any, X: Tensor) -> None:
        self._model, self._observed = model, observed_process(model)
        self._X = with_task_feature(self._observed, X)
        self._posterior: Any = posterior_at(self._observed, self._X)

    @property
    def mean(self) -> Tensor:
        """Mean of the outcome."""
        return self._moments[0]

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of the outcome."""
        return (self._moments[1] + self._moments[2]).sqrt()

    @property
    def objective_deviation(self) -> Tensor:
        """Standard deviation of the noise-free value: what more data would lower."""
        return self._moments[1].sqrt()

    @property
    def noise_deviation(self) -> Tensor:
        """Standard deviation of the noise."""
        return self._moments[2].sqrt()

    def quantile(self, score: Tensor | float) -> Tensor:
        """The quantile with a normal score, a scalar."""
        if not is_gaussian(self._posterior):
            return _quantile_of(self._observation, score)
        mean = self.mean
        score = torch.as_tensor(score, dtype=mean.dtype, device=mean.device)
        if isinstance(self._model, CalibratedModel):
            at_hand = isinstance(self._posterior, SinglePointPosterior)
            inputs = self._posterior.inputs if at_hand else self._model.transform_inputs(self._X)
            score = _flat(self._model.calibrator.predictive(inputs).transport(score))
        return mean + score * self.deviation

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance of the noise-free value, and of the noise."""
        posterior, observed = self._posterior, self._observed
        if is_gaussian(posterior):
            if posterior.mean.shape[-2] != self._X.shape[-2]:
                raise UnsupportedError(
                    "Outcomes cannot be predicted one by one under one-to-many input transforms."
                )
            variance = objective_variance(observed, posterior)
            noise = observation_noise_variance(observed, posterior, self._X)
            return _flat(posterior.mean), _flat(variance), _flat(noise.expand_as(variance))
        half = [
            0.5 * (_quantile_of(each, 1.0) - _quantile_of(each, -1.0))
            for each in (posterior, self._observation)
        ]
        own = torch.minimum(*half).square()
        return _quantile_of(self._observation, 0.0), own, half[1].square() - own

    @cached_property
    def _observation(self) -> Posterior:
        return self._model.posterior(self._X, observation_noise=True)


def _flat(values: Tensor) -> Tensor:
    return values.squeeze(-1).squeeze(-1)


def _quantile_of(posterior: Posterior, score: Tensor | float) -> Tensor:
    """The quantile of a posterior with a normal score, ``b``."""
    score = torch.as_tensor(score, dtype=torch.double, device=posterior.device)
    level = torch.special.ndtr(score.clamp(-_FARTHEST, _FARTHEST))
    return _flat(posterior.quantile(level)).to(posterior.dtype)


@torch.no_grad()
def leave_one_out_factor(model: Any) -> Tensor | float:
    r"""Factor by which the model's own data call for wider quantiles, a scalar.

    ``min(2, sqrt((8 + sum_i z_i^2) / (8 + n)))`` with the ``n`` leave-one-out residuals ``z_i`` of
    an exact Gaussian process. 1 for a calibrated model, whose calibrator has them already, and for
    models whose residuals would take refits.
    """
    if isinstance(model, CalibratedModel):
        return 1.0
    observed = observed_process(model)
    try:
        inputs, z, _ = forecast_history(observed, "loo")
    except BotorchError:
        return 1.0
    z = z[in_output_task(observed, inputs)].double()
    factor = (PRIOR_COUNT + z.square().sum()) / (PRIOR_COUNT + len(z))
    return factor.sqrt().clamp(max=MOST_FACTOR)
