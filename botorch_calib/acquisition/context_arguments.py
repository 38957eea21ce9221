"""Arguments of robust acquisition functions, and what is asked of their models."""

from __future__ import annotations

from typing import Any

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.utils.transforms import is_ensemble
from torch import Tensor

from botorch_calib._validation import check_inputs
from botorch_calib.models.inspection import innermost, observed_part, raw_train_inputs
from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.gp.contextual import Columns
from botorch_calib.robust.sets.base import AmbiguitySet


def context_law(
    contexts: ContextDistribution | Tensor, weights: Tensor | None
) -> ContextDistribution:
    """Contexts as they are given to an acquisition function, as a law."""
    if isinstance(contexts, ContextDistribution):
        if weights is not None:
            raise InputDataError(
                "`context_weights` are given, but `contexts` have weights already."
            )
        return contexts
    if not check_inputs("contexts", contexts).dtype.is_floating_point:
        raise InputDataError(f"`contexts` must be floating-point, got {contexts.dtype}.")
    if weights is None:
        return ContextDistribution.empirical(contexts)
    return ContextDistribution.discrete(contexts, weights)


def check_contextual_model(name: str, model: Any) -> None:
    """Raise ``UnsupportedError`` unless a model has one output and no batch dimensions."""
    if model.num_outputs != 1:
        raise UnsupportedError(f"{name} needs a model with one output, got {model.num_outputs}.")
    if is_ensemble(model):
        raise UnsupportedError(
            f"{name} needs a single model, and {type(model).__name__} is an ensemble. Use "
            "RobustAcquisition with an acquisition function that averages over its members."
        )
    check_no_batch(name, model)


def check_no_batch(name: str, model: Any) -> None:
    """Raise ``UnsupportedError`` for a batch of models, of which each would get its own inputs."""
    try:
        shape = tuple(getattr(model, "batch_shape", ()))
    except NotImplementedError:  # a model that does not say
        return
    if shape and not is_ensemble(model):
        raise UnsupportedError(
            f"{name} needs a model without batch dimensions, this {type(model).__name__} has "
            f"{shape}."
        )


def context_scale(model: Any, columns: Columns, points: Tensor) -> Tensor:
    """Scale ``d_c`` over which functions of the context vary: of the contexts and observations.

    Args:
        model: The model behind the function, or None.
        columns: Which columns are contexts.
        points: Contexts ``M x d_c`` at which the function is evaluated.
    """
    data = raw_train_inputs(innermost(model))
    if data is not None and data.shape[-1] == len(columns.decision) + len(columns.context):
        seen = data.detach()[..., columns.context].reshape(-1, len(columns.context))
        points = torch.cat([points, seen.to(points)])
    spread = points.std(dim=0, correction=0)
    size = points.abs().amax(dim=0)
    return torch.where(spread > 0, spread, torch.where(size > 0, size, 1.0))


def one_number(name: str, value: float | Tensor) -> float:
    """A number, or the only element of a tensor."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise BotorchTensorDimensionError(
            f"`{name}` must be one number, got shape {tuple(value.shape)}."
        )
    return float(value.detach() if isinstance(value, Tensor) else value)


def num_observations(model: Any) -> int:
    """Number of observations of a model, for a schedule of radii.

    Pending points of a `CensoredDelayModel`, inside or around a `CalibratedModel`, are not among
    them. Rows that any other model was conditioned on are, as nothing tells them from others.
    """
    targets = getattr(observed_part(model), "train_targets", None)
    if not isinstance(targets, Tensor):
        name = "an acquisition function without a model" if model is None else type(model).__name__
        raise UnsupportedError(
            f"`radius` is a function of the number of observations, which {name} does not tell: "
            "give `ambiguity.at(t)` or the number itself."
        )
    return int(targets.shape[-1])


def at_observations(ambiguity: AmbiguitySet, model: Any) -> AmbiguitySet:
    """The set, a schedule in it resolved with the number of observations of a model."""
    return ambiguity.at(num_observations(model)) if ambiguity.is_scheduled else ambiguity


def closed_form_state(gp: Any) -> tuple[object, ...]:
    """The numbers that the closed form of a ``SingleTaskGP`` depends on, for `same_basis`.

    Values are copied, since GPyTorch sets hyperparameters in place without a trace in their
    version counters.

    Args:
        gp: A model that `botorch_calib.robust.gp.stationary.is_stationary`.
    """
    inputs = gp.train_inputs[0]
    tensors = [inputs, gp.train_targets, gp.likelihood.noise, *gp.parameters(), *gp.buffers()]
    # As one vector, to be compared at once.
    values = [tensor.detach().reshape(-1).to(inputs.device, torch.double) for tensor in tensors]
    return (inputs.dtype, str(inputs.device)), torch.cat(values)


def same_basis(old: tuple[object, ...], new: tuple[object, ...]) -> bool:
    """Whether tensors and tuples are equal, and other objects the same ones."""

    def same(a: object, b: object) -> bool:
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            return a.device == b.device and torch.equal(a, b)
        return a == b if isinstance(a, tuple) else a is b

    return len(old) == len(new) and all(map(same, old, new))
