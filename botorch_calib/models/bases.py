"""What is asked of the model that is wrapped, and how its data are reached."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import Model
from gpytorch.likelihoods import FixedNoiseGaussianLikelihood
from gpytorch.likelihoods.gaussian_likelihood import _GaussianLikelihoodBase
from torch import Tensor

from botorch_calib._validation import check_finite


def check_base(model: Model) -> None:
    """Raise ``UnsupportedError`` unless ``model`` has one output and a Gaussian likelihood."""
    name = type(model).__name__
    if getattr(model, "_is_ensemble", False):
        raise UnsupportedError(
            f"{name} is an ensemble: its posterior is a mixture, which has no single residual to "
            "calibrate. Use a model fitted by marginal likelihood, such as SingleTaskGP."
        )
    if model.num_outputs != 1:
        raise UnsupportedError(
            f"{name} has {model.num_outputs} outputs: use one CalibratedModel per outcome in a "
            "ModelList."
        )
    if not isinstance(getattr(model, "likelihood", None), _GaussianLikelihoodBase):
        raise UnsupportedError(f"{name} has no Gaussian likelihood, which calibration needs.")


def check_observations(model: Any, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
    """Raise unless these are finite observations ``n x d``, ``n x 1`` of a single model."""
    if model.batch_shape:
        raise UnsupportedError(
            f"`observe` needs a model without batch dimensions, got {tuple(model.batch_shape)}."
        )
    width = _raw_width(model) or X.shape[-1]
    if X.dim() != 2 or X.shape[-1] != width or Y.shape != (X.shape[0], 1):
        raise BotorchTensorDimensionError(
            f"`X` and `Y` must have shapes n x {width} and n x 1, got {tuple(X.shape)} and "
            f"{tuple(Y.shape)}."
        )
    check_finite("X", X)
    check_finite("Y", Y)
    if Yvar is None:
        return
    if Yvar.shape != Y.shape or not (check_finite("Yvar", Yvar) >= 0).all():
        raise InputDataError(f"`Yvar` must be nonnegative, of the shape {tuple(Y.shape)} of `Y`.")
    if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        raise UnsupportedError(
            f"`Yvar` needs a base model with given noise; this {type(model).__name__} learns it."
        )


def _raw_width(model: Any) -> int | None:
    """Number of columns of the inputs before any input transform, where the model knows it."""
    inputs = getattr(model, "train_inputs", None)
    if not inputs:
        return None
    original: Tensor | None = getattr(model, "_original_train_inputs", None)
    if original is not None and getattr(model, "_has_transformed_inputs", False):
        return original.shape[-1]
    width: int = inputs[0].shape[-1]
    return width


def with_task_feature(model: Any, X: Tensor) -> Tensor:
    """``X`` with the column of the output task, where a multi-task model lets it be omitted."""
    if not isinstance(model, MultiTaskGPyTorchModel):
        return X
    base: Any = model
    if X.shape[-1] != base.num_non_task_features:
        return X
    place = base._task_feature
    task = X.new_full((*X.shape[:-1], 1), float(base._output_tasks[0]))
    return torch.cat([X[..., :place], task, X[..., place:]], dim=-1)


def transformed_train_inputs(model: Any) -> Tensor:
    """Training inputs of a model in eval mode, where they are the transformed ones, ``n x d``."""
    inputs: Tensor = model.train_inputs[0]
    return inputs


def given_noise(model: Any, Y: Tensor, Yvar: Tensor | None) -> dict[str, Tensor]:
    """The ``noise`` a fixed-noise model needs to be conditioned, in transformed units."""
    if not isinstance(model.likelihood, FixedNoiseGaussianLikelihood):
        return {}
    if Yvar is None:
        return {"noise": model.likelihood.noise.mean().expand_as(Y)}
    transform = getattr(model, "outcome_transform", None)
    return {"noise": Yvar if transform is None else transform(Y, Yvar)[1]}


def conditioned_on(model: Any, X: Tensor, Y: Tensor, **kwargs: Any) -> Model:
    """``model.condition_on_observations``, with an error that helps where there is none."""
    try:
        conditioned: Model = model.condition_on_observations(X, Y, **kwargs)
    except (NotImplementedError, AttributeError) as error:
        # BoTorch's variational models lack the method that its base class calls.
        if isinstance(error, AttributeError) and "get_fantasy_model" not in str(error):
            raise
        raise UnsupportedError(
            f"{type(model).__name__} cannot be conditioned on observations; call `observe` with "
            "`condition=False` and refit."
        ) from error
    return conditioned
