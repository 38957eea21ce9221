"""Arguments of robust acquisition functions, and what is asked of their models."""

from __future__ import annotations

from typing import Any

from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.utils.transforms import is_ensemble
from torch import Tensor

from botorch_calib._validation import check_inputs
from botorch_calib.models.bases import observed_part
from botorch_calib.robust.contexts import ContextDistribution


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
    contexts = check_inputs("contexts", contexts)
    if weights is None:
        return ContextDistribution.empirical(contexts)
    return ContextDistribution.discrete(contexts, weights)


def check_contextual_model(name: str, model: Any) -> None:
    """Raise ``UnsupportedError`` unless a model has one output and no batch dimensions."""
    if model.num_outputs != 1:
        raise UnsupportedError(f"{name} needs a model with one output, got {model.num_outputs}.")
    if is_ensemble(model) or model.batch_shape:
        raise UnsupportedError(
            f"{name} needs a model without batch dimensions, which {type(model).__name__} has. "
            "Use RobustAcquisition with an acquisition function that averages over them."
        )


def one_number(name: str, value: float | Tensor) -> float:
    """A number, or the only element of a tensor."""
    if isinstance(value, Tensor) and value.numel() != 1:
        raise BotorchTensorDimensionError(
            f"`{name}` must be one number, got shape {tuple(value.shape)}."
        )
    return float(value)


def num_observations(model: Any) -> int:
    """Number of observations of a model, for a schedule of radii."""
    targets = getattr(observed_part(model), "train_targets", None)
    if targets is None:
        raise UnsupportedError(
            f"`radius` is a function of the number of observations, which {type(model).__name__} "
            "does not tell: call it, and give the result."
        )
    return int(targets.shape[-1])


def same_basis(old: tuple[object, ...], new: tuple[object, ...]) -> bool:
    """Whether objects are the same ones, and tuples equal."""
    return len(old) == len(new) and all(
        a == b if isinstance(a, tuple) else a is b for a, b in zip(old, new, strict=True)
    )
