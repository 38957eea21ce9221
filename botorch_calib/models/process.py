"""The process inside a surrogate: its kind, its inputs, and checks of new data.

A surrogate, such as a `CalibratedModel`, wraps a BoTorch model, which is called its *process*. A
BoTorch model that is not wrapped is its own process. *Targets* are outcomes after the outcome
transform.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from copy import copy, deepcopy
from typing import Any, Literal

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.ensemble import EnsembleModel
from botorch.models.gpytorch import GPyTorchModel, MultiTaskGPyTorchModel
from botorch.models.model import Model, ModelList
from botorch.models.utils import fantasize
from botorch.utils.transforms import is_ensemble
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.models import GP, ExactGP
from torch import Size, Tensor

from botorch_calib._validation import check_pairs, check_precision, check_tensor
from botorch_calib.models.wrapper import WrapperModel

# ------------------------------------------------------------ models inside models


def predicting_process(model: object) -> Any:
    """Return a surrogate's process, conditioned on pending points, or another model itself."""
    return model.gaussian_model if isinstance(model, WrapperModel) else model


def observed_process(model: object) -> Any:
    """Return a surrogate's process, conditioned on observed data only, or another model itself."""
    return model.model if isinstance(model, WrapperModel) else model


def sole_member(model: object) -> Any:
    """Return the only model of a ``ModelList``, or any longer list or other model itself."""
    members = list(model.models) if isinstance(model, ModelList) else []
    return members[0] if len(members) == 1 else model


def kind_of(process: Any) -> Literal["members", "gaussian", "cdf"]:
    """Return the kind of a process's posterior: ``"members"``, ``"gaussian"`` or ``"cdf"``.

    The posterior of an ensemble has a dimension of members. Only the cdf is used of a process that
    is neither an ensemble nor a GP nor a list of models, since its posterior need not be Gaussian.
    """
    if is_ensemble(process) or isinstance(process, EnsembleModel):
        return "members"
    return "gaussian" if isinstance(process, (GPyTorchModel, GP, ModelList)) else "cdf"


def likelihood_of(model: object) -> Any:
    """Return a model's likelihood; None if the model has none."""
    return getattr(model, "likelihood", None)


def learned_noise(process: object) -> Tensor | None:
    """Return the variance that a likelihood learns in addition to given noise, or else None."""
    likelihood = likelihood_of(process)
    if not isinstance(likelihood, FixedNoiseGaussianLikelihood):
        return None
    learned = likelihood.second_noise_covar
    return None if learned is None else learned.noise


def with_own_hyperparameters(gp: ExactGP) -> ExactGP:
    """Return a copy of ``gp`` that shares its data and caches, but not its hyperparameters."""
    twin = copy(gp)
    hyperparameters = ("_parameters", "_buffers", "_modules")  # attributes of a torch module
    twin.__dict__ |= deepcopy({name: gp.__dict__[name] for name in hyperparameters})
    return twin


# ------------------------------------------------------------ training data and inputs


def raw_train_inputs(model: object) -> Tensor | None:
    """Return training inputs before any input transform.

    They are ``n x d``, with leading batch dimensions for a batch of models or an ensemble. The
    result is None if the model has none, or keeps a separate set for each outcome.
    """
    process = observed_process(model)
    inputs = getattr(process, "train_inputs", None)
    if not inputs or not isinstance(inputs[0], Tensor):  # a ModelListGP has a list of inputs
        return None
    # In eval mode BoTorch replaces `train_inputs` with transformed inputs, and keeps the originals.
    original = getattr(process, "_original_train_inputs", None)
    if original is not None and getattr(process, "_has_transformed_inputs", False):
        return original
    return inputs[0]


def of_one_member(data: Tensor) -> Tensor:
    """Return training data ``n x d`` without the batch dimensions of an ensemble's members.

    The members share their data, so the data of the first member are returned.
    """
    return data[(0,) * (data.dim() - 2)]


def raw_width(model: object) -> int | None:
    """Return the number of columns of inputs before any input transform; None if unknown."""
    inputs = raw_train_inputs(model)
    return None if inputs is None else inputs.shape[-1]


def with_task_feature(model: Any, X: Tensor) -> Tensor:
    """Return points with the task column that a multi-task model needs.

    ``X`` is ``... x d``. If the column is missing, it is added, with the output task. For other
    models ``X`` itself is returned.
    """
    process = observed_process(model)
    is_multi_task = isinstance(process, MultiTaskGPyTorchModel)
    if not is_multi_task or X.shape[-1] != process.num_non_task_features:
        return X
    place = process._task_feature
    task = X.new_full((*X.shape[:-1], 1), float(process._output_tasks[0]))
    return torch.cat([X[..., :place], task, X[..., place:]], dim=-1)


def without_task_feature(model: Any, X: Tensor) -> Tensor:
    """Return points ``... x d`` without the task column, if any: undo `with_task_feature`."""
    process = observed_process(model)
    is_multi_task = isinstance(process, MultiTaskGPyTorchModel)
    if not is_multi_task or X.shape[-1] == process.num_non_task_features:
        return X
    place = process._task_feature
    return torch.cat([X[..., :place], X[..., place + 1 :]], dim=-1)


def in_output_task(model: Any, X: Tensor) -> Tensor:
    """Return, for each row of ``X``, ``n x d``, whether the row belongs to the output task.

    The result is boolean, ``n``. It is True everywhere for a single-task model, and for rows
    without the task column.
    """
    process = observed_process(model)
    is_multi_task = isinstance(process, MultiTaskGPyTorchModel)
    if not is_multi_task or X.shape[-1] == process.num_non_task_features:
        return torch.ones(len(X), dtype=torch.bool, device=X.device)
    return X[:, process._task_feature].round().long() == process._output_tasks[0]


def training_points(model: object) -> list[Tensor]:
    """Return a model's training points, each ``n x d``, before any input transform.

    A multi-task model has two sets, since callers may omit the task column: its inputs, and the
    inputs of its output task without this column. A model without training inputs has none.
    """
    if (inputs := raw_train_inputs(model)) is None:
        return []
    points = [of_one_member(inputs)]
    if isinstance(observed_process(model), MultiTaskGPyTorchModel):
        own = points[0][in_output_task(model, points[0])]
        points.append(without_task_feature(model, own))
    return points


def check_fits(model: object, X: Tensor, name: str = "X") -> None:
    """Raise unless points fit a model's inputs.

    ``X`` is ``... x d``, and errors call it ``name``. For a multi-task model the task column may be
    omitted.

    Raises:
        BotorchTensorDimensionError: If the width differs.
        InputDataError: If the precision differs.
    """
    if X.dim() < 2:
        raise BotorchTensorDimensionError(
            f"`{name}` must have shape ... x d, one row for each point, got {tuple(X.shape)}."
        )
    inputs = raw_train_inputs(model)
    if inputs is None:
        return
    X = with_task_feature(model, X)
    if X.shape[-1] != inputs.shape[-1]:
        raise BotorchTensorDimensionError(
            f"`{name}` must have {inputs.shape[-1]} columns, like the model's inputs, got "
            f"{X.shape[-1]}."
        )
    check_precision(name, X, inputs.dtype)


def as_in_training(model: object) -> AbstractContextManager[Any]:
    """Return a context in which one-to-many input transforms add no points, as in training."""
    transform = getattr(model, "input_transform", None)
    makes_several = transform is not None and transform.is_one_to_many
    return fantasize() if makes_several else nullcontext()


def like(model: Model, X: Tensor) -> Tensor:
    """Return ``X``, detached, in the precision and on the device of the model's parameters."""
    parameter = next(model.parameters(), None)
    return X.detach() if parameter is None else X.detach().to(parameter)


def batch_shape_of(model: Any) -> Size:
    """Return a model's batch shape; empty if the model has none, as without training inputs."""
    try:
        return model.batch_shape
    except (NotImplementedError, AttributeError):
        return Size()


def batch_of_models(model: Any) -> Size:
    """Return the batch shape of a batch of models; empty for an ensemble, which is one model."""
    return Size() if is_ensemble(model) else batch_shape_of(model)


def checked_observations(
    model: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Validate observations ``X``, ``n x d``, and ``Y`` and ``Yvar``, ``n x 1``, and return them.

    The results are detached and on the model's device. For a multi-task model the task column is
    added to ``X`` if it is missing. For an exact GP, data are converted to the GP's precision.
    Other models may compute in a higher precision than their parameters have, so their data keep a
    higher precision. ``Yvar`` is None or NaN for unknown noise.

    Raises:
        InputDataError, BotorchTensorDimensionError: If an argument is malformed.
        UnsupportedError: If the model is a batch of models, or does not take noise variances.
    """
    process = observed_process(model)
    if batch_shape := batch_of_models(process):
        raise UnsupportedError(
            f"A batch of models of shape {tuple(batch_shape)} takes no observations: use a model "
            "without batch dimensions."
        )
    X = with_task_feature(process, X)
    check_pairs(X, Y, raw_width(process))

    def converted(values: Tensor) -> Tensor:
        own = like(process, values)
        if isinstance(process, ExactGP):
            return own
        return values.detach().to(own.device, torch.promote_types(own.dtype, values.dtype))

    if Yvar is None:
        return converted(X), converted(Y), None
    unknown = check_tensor("Yvar", Yvar).isnan()
    if Yvar.shape != Y.shape or not (unknown | (Yvar >= 0.0) & Yvar.isfinite()).all():
        raise InputDataError(
            f"`Yvar` must be nonnegative and finite, or NaN if unknown, of the shape "
            f"{tuple(Y.shape)} of `Y`."
        )
    takes_noise = isinstance(likelihood_of(process), FixedNoiseGaussianLikelihood)
    if not takes_noise and not unknown.all():
        raise UnsupportedError(
            f"`Yvar` needs a base model with given noise; this {type(process).__name__} learns it. "
            "A PartlyKnownNoiseGP does both."
        )
    return converted(X), converted(Y), converted(Yvar)
