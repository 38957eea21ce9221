"""How the parts, data, noise and units of a model are reached.

A `CensoredDelayModel` may stand around the model of its observed data, and a `CalibratedModel`
around a Gaussian process, in either order. `observed_process`, `predicting_process` and
`predicting_part` look inside; each leaves a plain model as it is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from functools import reduce
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.models.model import Model, ModelList
from botorch.models.transforms import ChainedOutcomeTransform, Standardize
from botorch.models.transforms.outcome import StratifiedStandardize
from botorch.models.utils import fantasize
from botorch.posteriors import GPyTorchPosterior, Posterior
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from torch import Tensor

from botorch_calib.distributions import PiecewisePredictive
from botorch_calib.models.noisy_ensemble import NoisyEnsemble
from botorch_calib.models.wrapper import WrapperModel
from botorch_calib.posteriors import CalibratedPosterior, StatedPosterior
from botorch_calib.posteriors.least_variance import (
    least_for_scale,
    marginal_variance,
    mean_and_deviation,
)
from botorch_calib.posteriors.single_points import is_gaussian, raw_variance

# ------------------------------------------------------------ models inside models


def predicting_part(model: Any) -> Any:
    """The model that predicts, calibrated or not, without a layer of pending points."""
    return getattr(model, "conditioned_model", model)


def predicting_process(model: Any) -> Any:
    """The Gaussian process that a model predicts by, pending points included."""
    return model.gaussian_model if isinstance(model, WrapperModel) else model


def observed_process(model: Any) -> Any:
    """The Gaussian process of observed data alone, inside this package's wrappers."""
    while isinstance(model, WrapperModel):
        model = model.model
    return model


def sole_member(model: Any) -> Any:
    """The model in a ``ModelList`` of a single one; any other as it is."""
    members = list(model.models) if isinstance(model, ModelList) else []
    return members[0] if len(members) == 1 else model


def with_own_hyperparameters(gp: Any) -> Any:
    """A copy of a process that shares data and caches, which nothing writes to."""
    twin = copy(gp)
    hyperparameters = ("_parameters", "_buffers", "_modules")  # where a module keeps them
    twin.__dict__ |= deepcopy({name: gp.__dict__[name] for name in hyperparameters})
    return twin


# ------------------------------------------------------------ training data and inputs


def raw_train_inputs(model: Any) -> Tensor | None:
    """Training inputs before any input transform, where a single model holds them."""
    inputs = getattr(model, "train_inputs", None)
    if not inputs or not isinstance(inputs[0], Tensor):  # a ModelListGP holds a list of them
        return None
    # In eval mode BoTorch puts the transformed inputs in place of these, and keeps these aside.
    original: Tensor | None = getattr(model, "_original_train_inputs", None)
    if original is not None and getattr(model, "_has_transformed_inputs", False):
        return original
    return inputs[0]


def inputs_of_transform(model: Any, X: Tensor | None = None) -> dict[str, Tensor]:
    """The argument ``X`` of a model's outcome transform, where that differs between inputs.

    Others are not given any, since those that users write need not take it. ``X``, ``... x d``, are
    the training inputs by default.
    """
    parts = model.outcome_transform.modules()
    if not any(isinstance(part, StratifiedStandardize) for part in parts):
        return {}
    inputs = raw_train_inputs(model) if X is None else X
    return {} if inputs is None else {"X": inputs}


def raw_width(model: Any) -> int | None:
    """Number of columns of the inputs before any input transform, where the model knows it."""
    inputs = raw_train_inputs(model)
    return None if inputs is None else inputs.shape[-1]


def with_task_feature(model: Any, X: Tensor) -> Tensor:
    """``X`` with the column of the output task, where a multi-task model lets it be omitted."""
    is_multi_task = isinstance(model, MultiTaskGPyTorchModel)
    if not is_multi_task or X.shape[-1] != model.num_non_task_features:
        return X
    place = model._task_feature
    task = X.new_full((*X.shape[:-1], 1), float(model._output_tasks[0]))
    return torch.cat([X[..., :place], task, X[..., place:]], dim=-1)


def in_output_task(model: Any, X: Tensor) -> Tensor:
    """Which rows of training inputs ``n x d`` belong to the output task; all but for multi-task."""
    is_multi_task = isinstance(model, MultiTaskGPyTorchModel)
    if not is_multi_task:
        return torch.ones(len(X), dtype=torch.bool, device=X.device)
    task: Tensor = X[:, model._task_feature].round().long()
    return task == model._output_tasks[0]


def as_in_training(model: Any) -> AbstractContextManager[Any]:
    """Context in which one-to-many input transforms leave points single, as training inputs are."""
    transform = getattr(model, "input_transform", None)
    return fantasize() if getattr(transform, "is_one_to_many", False) else nullcontext()


def like(model: Model, X: Tensor) -> Tensor:
    """``X`` without gradient, in the precision and on the device of the model's parameters."""
    parameter = next(model.parameters(), None)
    return X.detach() if parameter is None else X.detach().to(parameter)


# ------------------------------------------------------------ noise and units of the outcome

# The scale without an outcome transform: recognised, so that nothing is multiplied by it.
_UNIT = torch.ones(())


def outcome_scale(model: Any, squared: bool = False) -> Tensor | None:
    """Factor from the space of a model's targets to the units of the outcome, or its square.

    1 without an outcome transform; the standard deviation, ``batch_shape x 1 x 1``, of a
    ``Standardize``, and of a chain of such the product; None for any other transform.
    """
    transform = getattr(model, "outcome_transform", None)
    return _UNIT if transform is None else _scale_of(transform, squared)


def _scale_of(transform: Any, squared: bool) -> Tensor | None:
    # The exact types: a subclass may transform in another way.
    if type(transform) is Standardize:
        scale: Tensor = transform._stdvs_sq if squared else transform.stdvs
        return scale
    if type(transform) is ChainedOutcomeTransform:
        parts = [_scale_of(part, squared) for part in transform.values()]
        known = [part for part in parts if part is not None]
        return reduce(torch.mul, known, _UNIT) if len(known) == len(parts) else None
    return None


def unit_of_targets(model: Any, like: Tensor) -> Tensor:
    """One unit of a model's targets in units of its outcome, a scalar like ``like``, or else 1."""
    scale = outcome_scale(predicting_process(model))
    if scale is None or scale.numel() != 1:
        return torch.ones_like(like[0, 0])
    return scale.detach().reshape(()).to(like)


def outcome_units(model: Any) -> Tensor:
    """The unit of each training target of a single-output model, in units of the outcome: ``n``."""
    targets: Tensor = model.train_targets.detach()
    transform = getattr(model, "outcome_transform", None)
    if transform is None:
        return torch.ones_like(targets)
    if not getattr(transform, "_is_linear", False):
        raise UnsupportedError(
            f"The outcome transform {type(transform).__name__} leaves no Gaussian prediction in "
            "units of the outcome: use Standardize, and apply others to the observations "
            "beforehand."
        )
    # Of variances, as a difference of two values would lose digits to the mean.
    ones = torch.ones_like(targets).unsqueeze(-1)
    squares: Tensor = transform.untransform(ones, ones, **inputs_of_transform(model))[1]
    return squares.detach().squeeze(-1).sqrt()


def least_variance(model: Any, posterior: GPyTorchPosterior) -> Tensor | None:
    """Smallest variance that a single-output model's posterior is to state; None for GPyTorch's.

    GPyTorch states none below 1e-10 (1e-6 in single precision), in whatever units: here that is a
    bound in the space of a ``Standardize``'s targets. In squared units of the outcome; broadcasts
    to ``batch_shape x q x 1``.
    """
    if isinstance(model, NoisyEnsemble):  # which states less than GPyTorch's least
        return raw_variance(posterior).detach()
    scale = outcome_scale(model, squared=True)
    if scale is None or scale is _UNIT:
        return None
    return least_for_scale(scale, posterior.dtype)


def stated_moments(
    model: Any, posterior: Posterior, transform: PosteriorTransform | None = None
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of the objective, ``batch_shape x q x 1`` each.

    ``transform`` is the posterior transform that the posterior of ``model`` has been through.
    """
    if not is_gaussian(posterior):
        return mean_and_deviation(posterior)
    least = least_variance(predicting_process(model), posterior)
    if least is not None and transform is not None:
        # The units are known for a factor and an offset only.
        weights: Any = getattr(transform, "weights", None)
        scaled = type(transform) is ScalarizedPosteriorTransform and weights.numel() == 1
        least = least * weights.square() if scaled else None
    return mean_and_deviation(posterior, least)


def as_calibrated(model: Any, posterior: Posterior) -> StatedPosterior:
    """A single-output model's posterior with the methods of a calibrated one.

    A calibrated posterior is returned as it is, and nothing is corrected in a Gaussian one.
    """
    if isinstance(posterior, StatedPosterior):
        return posterior
    if not is_gaussian(posterior):
        raise UnsupportedError(
            f"A calibrated or Gaussian posterior is needed; {type(model).__name__} gave a "
            f"{type(posterior).__name__}. Monte Carlo acquisition functions, such as "
            "qLogCalibratedNoisyExpectedImprovement with `constraints`, take any."
        )
    normal = PiecewisePredictive.gaussian(dtype=torch.double, device=posterior.device)
    least = least_variance(predicting_process(model), posterior)
    return CalibratedPosterior(posterior, normal, 0.0, least_variance=least, validate_args=False)


def objective_variance(model: Any, posterior: GPyTorchPosterior) -> Tensor:
    """``posterior.variance``, not below the `least_variance`, ``batch_shape x q x 1``."""
    return marginal_variance(posterior, least_variance(model, posterior))


def observation_noise_variance(
    model: Any, posterior: GPyTorchPosterior, X: Tensor, given: Tensor | None = None
) -> Tensor:
    """Noise variance of a new observation, as ``posterior(X, observation_noise=True)`` adds it.

    In squared units of the outcome; broadcasts to ``batch_shape x q x 1``. Where it is not read
    off, it costs a second evaluation of the posterior. BoTorch adds fixed noise twice that is
    learned in part, and none of an outlier-robust model's. ``posterior`` is that of the model at
    ``X``, ``batch_shape x q x d``; ``given`` is noise variance in the outcome-transformed space, in
    place of the likelihood's.
    """
    scale = outcome_scale(model, squared=True)
    if given is not None:
        noise: Tensor | None = given
    elif isinstance(model, MultiTaskGPyTorchModel):  # may differ from task to task
        noise = _given_noise_by_task(model, X)
    else:
        noise = _constant_noise(model.likelihood)
    if noise is not None and scale is not None:
        return noise if scale is _UNIT else noise * scale
    if noise is not None and model.outcome_transform._is_linear:
        values, strata = posterior.mean, inputs_of_transform(model, X)
        variance: Tensor = model.outcome_transform.untransform(
            values, noise.expand_as(values), **strata
        )[1]
        return variance
    if not getattr(model, "_is_ensemble", False):  # which adds its members itself
        X = X.expand(*posterior.mean.shape[:-2], *X.shape[-2:])
    noisy = model.posterior(X, observation_noise=True if given is None else given)
    least = least_variance(model, posterior)
    with_noise, stated = (marginal_variance(each, least) for each in (noisy, posterior))
    return (with_noise - stated).clamp(min=0.0)


def constant_noise_variance(model: Any) -> Tensor:
    """`observation_noise_variance` where it is the same at all inputs: ``batch_shape x 1 x 1``."""
    scale, noise = outcome_scale(model, squared=True), _constant_noise(model.likelihood)
    assert scale is not None and noise is not None
    return noise * scale


def _constant_noise(likelihood: Any) -> Tensor | None:
    """Noise variance of a likelihood, ``batch_shape x 1 x 1``, if it is constant."""
    if type(likelihood) is GaussianLikelihood:
        return likelihood.noise.unsqueeze(-1)
    if type(likelihood) is SparseOutlierGaussianLikelihood:
        noise: Tensor = likelihood.noise_covar.base_noise.noise
    elif isinstance(likelihood, FixedNoiseGaussianLikelihood):
        noise = likelihood.noise
    else:
        return None
    return noise.mean(dim=-1, keepdim=True).unsqueeze(-1)


def _given_noise_by_task(model: Any, X: Tensor) -> Tensor | None:
    """Mean of the given noise of each row's task, ``batch_shape x q x 1``; None if it is learned.

    BoTorch's models add the same, except that (up to 0.18.1) those conditioned on batches cannot,
    and for a task without observations they say NaN: here it has the mean of all tasks.
    """
    if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        return None
    # Both transformed, after a posterior
    inputs = model.transform_inputs(with_task_feature(model, X)), model.train_inputs[0]
    own, seen = (Z[..., model._task_feature].round() for Z in inputs)
    same = (own.unsqueeze(-1) == seen.unsqueeze(-2)).to(X)
    noise = model.likelihood.noise.unsqueeze(-1)
    count = same.sum(dim=-1, keepdim=True)
    own_mean = (same @ noise) / count.clamp_min(1.0)
    return torch.where(count > 0.0, own_mean, noise.mean(dim=-2, keepdim=True))
