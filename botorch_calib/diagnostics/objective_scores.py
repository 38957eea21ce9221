"""Coverage of the objective, where its true values are known.

Calibrators bound the coverage of *outcomes*. Intervals of the objective depend on the stated noise
as well: they can be wrong while those of the outcome are right, and outcomes do not show it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from botorch.posteriors import GPyTorchPosterior
from gpytorch.distributions import MultivariateNormal
from linear_operator.operators import DiagLinearOperator
from torch import Tensor

from botorch_calib._validation import check_finite
from botorch_calib.calibration import NoCalibration
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.models.calibrated import CalibratedModel
from botorch_calib.models.delayed import CensoredDelayModel
from botorch_calib.models.inspection import (
    least_variance,
    observed_process,
    outcome_units,
    predicting_process,
)
from botorch_calib.models.marginals import posterior_at
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.training_prior import training_prior
from botorch_calib.posteriors import CalibratedPosterior, StatedPosterior

#: The objective without noise: its values ``n x 1`` at the points judged, or what computes them.
Truth = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class ObjectiveScores:
    """How stated distributions of the objective fared against its true values at ``n`` points.

    The coverage has no interval: errors at points of one function depend on each other.

    Attributes:
        coverage: Fraction of true values inside the central ``1 - alpha`` interval.
        mean_width: Mean width of the interval, in units of the outcome.
        pits: Stated probabilities of a value below the true one, ``n``.
        covered: Whether each true value lay inside its interval, ``n``.
    """

    coverage: float
    mean_width: float
    pits: Tensor
    covered: Tensor


def objective_scores(posterior: StatedPosterior, truth: Tensor, alpha: float) -> ObjectiveScores:
    """Scores of the central ``1 - alpha`` intervals of a posterior's ``n`` marginals."""
    levels = (posterior.mean.new_tensor(p) for p in (alpha / 2, 1 - alpha / 2))
    lower, upper = (posterior.quantile(p) for p in levels)
    values = truth.view(lower.shape)
    covered = (lower <= values) & (values <= upper)
    return ObjectiveScores(
        coverage=float(covered.double().mean()),
        mean_width=float((upper - lower).double().mean()),
        pits=posterior.cdf(values).reshape(-1),
        covered=covered.reshape(-1),
    )


def true_values(truth: Truth, X: Tensor) -> Tensor:
    """The objective's values at ``X`` (``n x d``), finite and of shape ``n``, or an error."""
    values = truth(X) if callable(truth) else truth
    if not isinstance(values, Tensor) or values.shape != (len(X), 1):
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise BotorchTensorDimensionError(
            f"`truth` must give {len(X)} x 1 values, one for each point that is judged (without "
            f"`X`, each training input), got {shape}."
        )
    return check_finite("truth", values.detach().to(X)).squeeze(-1)


# ------------------------------------------------------------ posteriors of the objective
#
# Of each model two, by the Gaussian process in it and as they are calibrated, if they are.


def predicted_objective(
    gp: Any,
    residuals: Tensor,
    deviations: Tensor,
    kept: Tensor,
    stated: PiecewisePredictive | None,
    excess: str,
    denoise: bool = True,
) -> list[StatedPosterior]:
    """Posteriors of the objective at training inputs as their observations were predicted.

    With ``denoise=False`` they are of these observations. ``residuals`` and predictive
    ``deviations``, in units of the outcome, are those of all ``n`` training observations, of which
    those at the indices ``kept`` are judged; ``stated`` are a calibrator's distributions of the
    residuals of these, if there is one.
    """
    mean = raw_train_targets(gp).squeeze(-1) - deviations * residuals
    noise = outcome_units(gp).square() * training_prior(gp).new_noise
    variance = (deviations.square() - noise).clamp(min=0.0)
    # Independent, as only marginals count
    normal = MultivariateNormal(mean[kept], DiagLinearOperator(variance[kept]))
    base = GPyTorchPosterior(normal)
    noise, least = noise[kept].unsqueeze(-1), least_variance(gp, base)

    def posterior(predictive: PiecewisePredictive) -> CalibratedPosterior:
        return CalibratedPosterior(base, predictive, noise, denoise, excess, least)

    normal_scores = PiecewisePredictive.gaussian(dtype=torch.double, device=mean.device)
    return [posterior(each) for each in (normal_scores, stated) if each is not None]


def present_objective(model: Any, X: Tensor) -> list[StatedPosterior]:
    """A model's present posteriors of the objective at the points ``X``, ``n x d``."""
    # A model that states distributions of the observation has one of the objective all the same.
    if isinstance(model, CalibratedModel) and not model.denoise:
        model = CalibratedModel(model.model, model.calibrator, excess=model.excess)
    # One point a batch: only the marginals are needed.
    points = X.unsqueeze(-2)
    posterior = posterior_at(model, points)
    base = CalibratedModel(predicting_process(model), NoCalibration()).posterior(points)
    return [each for each in (base, posterior) if isinstance(each, StatedPosterior)]


def without_pending(model: Any) -> Any:
    """The model of observed data alone, calibrated or not, wherever it knows pending points."""
    gp = observed_process(model)
    inner = model.model if isinstance(model, CensoredDelayModel) else model
    return inner.with_model(gp) if isinstance(inner, CalibratedModel) else gp
