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

    Args:
        model: A model of one outcome.
        X: The points.
    """

    def __init__(self, model: Any, X: Tensor) -> None:
        self._model, observed = model, observed_process(model)
        self._X = with_task_feature(observed, X)
        self._posterior: Posterior = posterior_at(observed, self._X)
        if is_gaussian(self._posterior):
            if self._posterior.mean.shape[-2] != X.shape[-2]:
                raise UnsupportedError(
                    "Outcomes cannot be predicted one by one under one-to-many input transforms."
                )
            variance = objective_variance(observed, self._posterior)
            noise = observation_noise_variance(observed, self._posterior, self._X)
            self.mean, self._variance = _flat(self._posterior.mean), _flat(variance)
            self._noise = _flat(noise.expand_as(variance))
        else:
            objective, noisy = _moments(self._posterior), _moments(self._observation)
            self.mean, self._variance = noisy[0], objective[1]
            self._noise = (noisy[1] - objective[1]).clamp_min(0.0)

    @property
    def deviation(self) -> Tensor:
        """Standard deviation of the outcome."""
        return (self._variance + self._noise).sqrt()

    @property
    def objective_deviation(self) -> Tensor:
        """Standard deviation of the noise-free value: what more data would lower."""
        return self._variance.sqrt()

    @property
    def noise_deviation(self) -> Tensor:
        """Standard deviation of the noise."""
        return self._noise.sqrt()

    def quantile(self, score: Tensor | float) -> Tensor:
        """The quantile with a normal score, a scalar."""
        score = torch.as_tensor(score, dtype=self.mean.dtype, device=self.mean.device)
        if not is_gaussian(self._posterior):
            level = torch.special.ndtr(score.double().clamp(-_FARTHEST, _FARTHEST))
            return _flat(self._observation.quantile(level)).to(self.mean)
        if isinstance(self._model, CalibratedModel):
            at_hand = isinstance(self._posterior, SinglePointPosterior)
            inputs = self._posterior.inputs if at_hand else self._model.transform_inputs(self._X)
            score = _flat(self._model.calibrator.predictive(inputs).transport(score))
        return self.mean + score * self.deviation

    @cached_property
    def _observation(self) -> Posterior:
        return self._model.posterior(self._X, observation_noise=True)


def _flat(values: Tensor) -> Tensor:
    return values.squeeze(-1).squeeze(-1)


def _moments(posterior: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance; of a mixture, over its members."""
    mean, variance = (
        getattr(posterior, f"mixture_{name}", getattr(posterior, name))
        for name in ("mean", "variance")
    )
    return _flat(mean), _flat(variance)


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
