r"""Quantiles of the next outcome, as any model states them.

The quantile with the normal score ``s`` is ``F_x^{-1}(Phi(s))``, ``F_x`` being the predictive
distribution of an observation at ``x``: ``mean + s deviation`` for a Gaussian process; for others
the quantile of a `CalibratedModel`, uncorrected if there is no calibrator. Pending points do not
count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from botorch_calib.calibration import NoCalibration
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

# Levels closer to 0 and 1 are the same numbers in double precision.
_FARTHEST = 8.0
# Steps of a safeguarded Newton iteration: a handful reach rounding, unless its start is far off.
_STEPS = 30
#: Probabilities closer to 0 and 1 than these have no finite normal score in double precision.
LEAST, MOST = 1e-300, 1.0 - 2.0**-53


class OutcomeQuantiles:
    """Quantiles and moments of an outcome at points ``b x 1 x d``; results are ``b``.

    If the distribution is not Gaussian, the median stands for the mean, and half of the distance
    between the quantiles ``Phi(1)`` and ``Phi(-1)`` for the deviation.

    Args:
        model: A model of one outcome.
        X: The points.
    """

    def __init__(self, model: Any, X: Tensor) -> None:
        self._model, self._observed = model, observed_process(model)
        self._X = with_task_feature(self._observed, X)
        self._predictor = predictor_of(self._observed)
        self._is_gaussian = type(self._predictor) is GaussianPredictor

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
            if isinstance(score, Tensor):
                return self._solved(score)
            return _quantile_of(self._outcome, score)
        if isinstance(self._model, CalibratedModel):
            inputs = self._predictor.inputs(self._X, self._posterior)
            wanted = torch.as_tensor(score).to(self.mean)[..., None, None]
            score = _flat(self._model.calibrator.predictive(inputs).transport(wanted))
        return self.mean + score * self.deviation

    def score(self, value: Tensor) -> Tensor:
        """Normal scores ``Phi^{-1}(F(y))`` of values that broadcast against ``b``."""
        if self._is_gaussian and not isinstance(self._model, CalibratedModel):
            return (value - self.mean.double()) / self.deviation.double()
        shape = torch.broadcast_shapes(value.shape, self._X.shape[:-2])
        p = self._outcome.cdf(value.expand(shape)[..., None, None])
        return torch.special.ndtri(p.double().clamp(LEAST, MOST))[..., 0, 0]

    def _solved(self, score: Tensor) -> Tensor:
        """Quantiles with scores of their own, of a distribution that states them by level."""
        ends = [_quantile_of(self._outcome, float(end)) for end in score.detach().aminmax()]
        low, high = (end.detach().double() for end in ends)
        score = score.expand_as(low)
        kept = lambda t: torch.special.ndtr(self.score(t))  # noqa: E731
        start = low.lerp(high, 0.5)
        return solved(torch.special.ndtr(score.double()), kept, start, low, high).to(self.mean)

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


def solved(
    level: Tensor, kept: Callable[[Tensor], Tensor], start: Tensor, low: Tensor, high: Tensor
) -> Tensor:
    """The ``t`` in ``[low, high]`` that is kept with probability ``level``, with its derivatives.

    Newton's steps on the normal score of the probability, which is nearly linear in ``t``; a step
    out of the bracket is replaced by its middle. The last step is taken with a graph, so that the
    gradient is that of the implicit function.

    Args:
        level: Levels ``...``, like all tensors, in double precision.
        kept: Maps ``t`` to the probability of at most ``t``, which rises.
        start: Where to start.
        low: Where at most ``level`` is kept, without a graph.
        high: Where at least ``level`` is kept, without a graph.
    """
    wanted = torch.special.ndtri(level.detach())
    t, slope = start.clamp(low, high), torch.ones_like(start)
    for _ in range(_STEPS):
        with torch.enable_grad():
            t = t.requires_grad_()
            p = kept(t)
            (slope,) = torch.autograd.grad(p.sum(), t)
        t, p = t.detach(), p.detach()
        low, high = torch.where(p < level, t, low), torch.where(p < level, high, t)
        reached = torch.special.ndtri(p.clamp(LEAST, MOST))
        density = (-0.5 * reached.square()).exp() / (2.0 * torch.pi) ** 0.5
        new = t + (wanted - reached) * density / slope
        inside = (low <= new) & (new <= high)
        new = torch.where(inside, new, 0.5 * (low + high))
        # The loop ends early where that does not have to wait for a device.
        if t.device.type == "cpu" and torch.allclose(new, t, rtol=1e-12, atol=0.0):
            break
        t = new
    return t + (level - kept(t)) / torch.where(slope > 0.0, slope, torch.inf)


def _flat(values: Tensor) -> Tensor:
    return values.squeeze(-1).squeeze(-1)


def _quantile_of(posterior: StatedPosterior, score: float) -> Tensor:
    """The quantile of a posterior with a normal score, ``b``."""
    # A number, as a tensor would be read back from its device.
    level = 0.5 * math.erfc(-min(max(float(score), -_FARTHEST), _FARTHEST) / math.sqrt(2.0))
    return _flat(posterior.quantile(level)).to(posterior.dtype)
