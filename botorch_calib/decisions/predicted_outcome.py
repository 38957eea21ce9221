r"""Quantiles of the next outcome, as any model states them.

The quantile with the normal score ``s`` is ``F_x^{-1}(Phi(s))``, ``F_x`` being the predictive
distribution of an observation at ``x``: ``mean + s deviation`` for a Gaussian process; for others
the quantile of a `CalibratedModel`, uncorrected if there is no calibrator. Pending points do not
count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from botorch_calib.calibration import NoCalibration
from botorch_calib.distributions import PiecewisePredictive
from botorch_calib.distributions.mixture_scores import score_of_tails
from botorch_calib.models import CalibratedModel
from botorch_calib.models.inspection import (
    objective_variance,
    observation_noise_variance,
    observed_process,
    with_task_feature,
)
from botorch_calib.models.marginals import posterior_at
from botorch_calib.models.predictors import Correction, GaussianPredictor, predictor_of
from botorch_calib.models.requirements import check_one_value_each
from botorch_calib.posteriors import StatedPosterior

_FARTHEST = 37.0  # largest normal score: beyond, probabilities underflow
#: Probabilities closer to 0 and 1 than these have no finite normal score in double precision.
LEAST, MOST = 1e-300, 1.0 - 2.0**-53


class OutcomeQuantiles:
    """Quantiles and moments of an outcome at points ``b x 1 x d``; results are ``b``.

    If the distribution is not Gaussian, the median stands for the mean, and half of the distance
    between the quantiles ``Phi(1)`` and ``Phi(-1)`` for the deviation.
    """

    def __init__(self, model: Any, X: Tensor) -> None:
        self._model, self._observed = model, observed_process(model)
        self._X = with_task_feature(self._observed, X)
        self._predictor = predictor_of(self._observed)
        self._is_gaussian = type(self._predictor) is GaussianPredictor

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the points."""
        return self._X.dtype

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

    def quantile(self, score: float | Tensor) -> Tensor:
        """The quantile with a normal score: a number, or a tensor that broadcasts against ``b``."""
        if not self._is_gaussian:
            z = torch.as_tensor(score, dtype=torch.double, device=self._X.device)
            z = z.clamp(-_FARTHEST, _FARTHEST)[..., None, None]
            return _flat(self._outcome.at_score(z)).to(self._outcome.dtype)
        if isinstance(self._model, CalibratedModel):
            wanted = torch.as_tensor(score, dtype=self.dtype, device=self._X.device)
            score = _flat(self._predictive.transport(wanted[..., None, None]))
        return self.mean + score * self.deviation

    def scores(self, values: Sequence[float]) -> Tensor:
        """Normal scores of numbers, one row for each of them."""
        full = [self._X.new_full((), value, dtype=torch.double) for value in values]
        return self.score(torch.stack(full).view(-1, *[1] * (self._X.dim() - 2)))

    def score(self, value: Tensor) -> Tensor:
        """Normal scores ``Phi^{-1}(F(y))`` of values that broadcast against ``b``."""
        if self._is_gaussian:
            score = (value - self.mean.double()) / self.deviation.double()
            if not isinstance(self._model, CalibratedModel):
                return score
            y = score[..., None, None]
            tails = self._predictive.cdf(y), self._predictive.mirrored().cdf(-y)
        else:
            shape = torch.broadcast_shapes(value.shape, self._X.shape[:-2])
            y = value.expand(shape)[..., None, None]
            tails = self._outcome.cdf(y), self._outcome.affine(-1.0).cdf(-y)
        return _flat(score_of_tails(*(tail.double() for tail in tails)))

    @cached_property
    def _predictive(self) -> PiecewisePredictive:
        """What a calibrator states of the Gaussian's normal scores."""
        inputs = self._predictor.inputs(self._X, self._posterior)
        predictive: PiecewisePredictive = self._model.calibrator.predictive(inputs)
        return predictive

    @cached_property
    def _posterior(self) -> Any:
        return posterior_at(self._observed, self._X)

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, variance of the noise-free value, and of the noise."""
        observed = self._observed
        if self._is_gaussian:
            posterior = self._posterior
            check_one_value_each(posterior.mean.shape[-2], self._X, "A quantile of an outcome")
            variance = objective_variance(observed, posterior)
            noise = observation_noise_variance(observed, posterior, self._X)
            return _flat(posterior.mean), _flat(variance), _flat(noise.expand_as(variance))
        outcome = self._outcome
        # Some models do not say what is noise.
        objective = self._stated(denoise=True) if self._predictor.states_objective else outcome
        whole, own = (
            0.5 * (_quantile_of(each, 1.0) - _quantile_of(each, -1.0))
            for each in (outcome, objective)
        )
        variance = torch.minimum(whole, own).square()
        # Not 0, where a root has no derivative.
        noise = (whole.square() - variance).clamp_min(torch.finfo(whole.dtype).tiny)
        return _quantile_of(outcome, 0.0), variance, noise

    @cached_property
    def _outcome(self) -> StatedPosterior:
        """The distribution of the outcome, where it is not Gaussian."""
        return self._stated(denoise=False)

    def _stated(self, denoise: bool) -> StatedPosterior:
        """What a calibrated model of the observed data states."""
        calibrated = isinstance(self._model, CalibratedModel)
        calibrator = self._model.calibrator if calibrated else NoCalibration()
        return self._predictor.posterior(self._X, Correction(calibrator, denoise))


def _flat(values: Tensor) -> Tensor:
    return values.squeeze(-1).squeeze(-1)


def _quantile_of(posterior: StatedPosterior, score: float) -> Tensor:
    """The quantile of a posterior with a normal score, ``b``."""
    # A number, as a tensor would be read back from its device.
    level = 0.5 * math.erfc(-score / math.sqrt(2.0))
    return _flat(posterior.quantile(level)).to(posterior.dtype)
