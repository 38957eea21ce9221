"""What a process is made of: how its parts, its data and its noise are reached.

`observed_process` and `predicting_process` look inside a surrogate, and leave a plain model as it
is.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from typing import Any

import torch
from botorch.models.ensemble import EnsembleModel
from botorch.models.gpytorch import GPyTorchModel, MultiTaskGPyTorchModel
from botorch.models.likelihoods.sparse_outlier_noise import SparseOutlierGaussianLikelihood
from botorch.models.model import Model, ModelList
from botorch.models.transforms.outcome import StratifiedStandardize
from botorch.models.utils import fantasize
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood, GaussianLikelihood
from gpytorch.models import GP
from torch import Tensor

from botorch_calib.models.wrapper import WrapperModel

# ------------------------------------------------------------ models inside models


def predicting_process(model: Any) -> Any:
    """The process that a model predicts by, pending points included."""
    return model.gaussian_model if isinstance(model, WrapperModel) else model


def observed_process(model: Any) -> Any:
    """The process of observed data alone, inside a surrogate."""
    return model.model if isinstance(model, WrapperModel) else model


def sole_member(model: Any) -> Any:
    """The model in a ``ModelList`` of a single one; any other as it is."""
    members = list(model.models) if isinstance(model, ModelList) else []
    return members[0] if len(members) == 1 else model


def has_members(process: Any) -> bool:
    """Whether a process is an ensemble, whose posterior has a dimension of members."""
    return bool(getattr(process, "_is_ensemble", False)) or isinstance(process, EnsembleModel)


def states_cdf_alone(process: Any) -> bool:
    """Whether it is no Gaussian model: of its posterior only the cdf is known."""
    return not (has_members(process) or isinstance(process, (GPyTorchModel, GP, ModelList)))


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


# ------------------------------------------------------------ noise of observations


def noise_at(process: Any, X: Tensor) -> Tensor | None:
    """Noise variance of a new observation in the space of the targets, where it can be read off.

    It broadcasts to ``batch_shape x q x 1`` at ``X``, ``batch_shape x q x d``. BoTorch adds fixed
    noise twice that is learned in part, and none of an outlier-robust model's.
    """
    if isinstance(process, MultiTaskGPyTorchModel):  # may differ from task to task
        return _given_noise_by_task(process, X)
    return constant_noise(process.likelihood)


def constant_noise(likelihood: Any) -> Tensor | None:
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
