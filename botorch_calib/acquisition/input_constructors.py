"""Registration of the acquisition functions with BoTorch's input constructors (used by Ax)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.input_constructors import (
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
    acqf_input_constructor,
)
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_calib.acquisition.calibrated import (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    CalibratedUpperConfidenceBound,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.acquisition.delayed import DelayedUpperConfidenceBound
from botorch_calib.acquisition.robust import (
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
)
from botorch_calib.acquisition.thompson import DelayedThompsonSampling
from botorch_calib.models import CalibratedModel
from botorch_calib.models.inspection import observed_part, raw_train_targets
from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.sets.base import AmbiguitySet


def register_once(
    *classes: type[AcquisitionFunction],
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """``acqf_input_constructor`` that lets a reloaded module register again."""
    for acqf_class in classes:
        ACQF_INPUT_CONSTRUCTOR_REGISTRY.pop(acqf_class, None)
    return acqf_input_constructor(*classes)


@register_once(
    CalibratedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
)
def construct_inputs_calibrated_improvement(
    model: Model,
    training_data: SupervisedDataset | dict[Hashable, SupervisedDataset],
    posterior_transform: PosteriorTransform | None = None,
    best_f: float | Tensor | None = None,
    maximize: bool = True,
    X_pending: Tensor | None = None,
    num_fantasies: int = 16,
) -> dict[str, Any]:
    """Arguments of the improvement functions; ``best_f`` defaults to the best observation."""
    if best_f is None:
        best_f = _best_observation(model, training_data, posterior_transform, maximize)
    return {
        "model": model,
        "best_f": best_f,
        "posterior_transform": posterior_transform,
        "maximize": maximize,
        "X_pending": X_pending,
        "num_fantasies": num_fantasies,
    }


def _best_observation(
    model: Model,
    training_data: SupervisedDataset | dict[Hashable, SupervisedDataset],
    posterior_transform: PosteriorTransform | None,
    maximize: bool,
) -> Tensor:
    """The incumbent, of a minimisation too; outcomes that the model has no part in are left out."""
    datasets = list(training_data.values()) if isinstance(training_data, dict) else [training_data]
    if sum(dataset.Y.shape[-1] for dataset in datasets) == 1:
        Y: Tensor = datasets[0].Y
    elif isinstance(model, CalibratedModel):
        Y = raw_train_targets(observed_part(model.model))
    else:
        raise NotImplementedError("Give `best_f`: the default needs one dataset with one outcome.")
    values = Y.squeeze(-1) if posterior_transform is None else posterior_transform.evaluate(Y)
    return values.amax(dim=-1) if maximize else values.amin(dim=-1)


@register_once(CalibratedUpperConfidenceBound)
def construct_inputs_calibrated_ucb(
    model: Model,
    posterior_transform: PosteriorTransform | None = None,
    level: float = 0.9,
    maximize: bool = True,
    X_pending: Tensor | None = None,
    num_fantasies: int = 16,
) -> dict[str, Any]:
    """Arguments of `CalibratedUpperConfidenceBound`."""
    return {
        "model": model,
        "level": level,
        "posterior_transform": posterior_transform,
        "maximize": maximize,
        "X_pending": X_pending,
        "num_fantasies": num_fantasies,
    }


@register_once(DelayedUpperConfidenceBound)
def construct_inputs_delayed_ucb(
    model: Model,
    posterior_transform: PosteriorTransform | None = None,
    beta: float = 1.0,
    X_window: Tensor | None = None,
    feedback_bound: float = 1.0,
    maximize: bool = True,
    X_pending: Tensor | None = None,
) -> dict[str, Any]:
    """Arguments of `DelayedUpperConfidenceBound`."""
    return {
        "model": model,
        "beta": beta,
        "X_window": X_window,
        "feedback_bound": feedback_bound,
        "posterior_transform": posterior_transform,
        "maximize": maximize,
        "X_pending": X_pending,
    }


@register_once(DelayedThompsonSampling)
def construct_inputs_delayed_thompson_sampling(
    model: Model,
    posterior_transform: PosteriorTransform | None = None,
    beta: float = 1.0,
    X_window: Tensor | None = None,
    feedback_bound: float = 1.0,
    choices: Tensor | None = None,
    seed: int = 0,
    maximize: bool = True,
    X_pending: Tensor | None = None,
) -> dict[str, Any]:
    """Arguments of `DelayedThompsonSampling`."""
    return {
        "model": model,
        "beta": beta,
        "X_window": X_window,
        "feedback_bound": feedback_bound,
        "choices": choices,
        "seed": seed,
        "posterior_transform": posterior_transform,
        "maximize": maximize,
        "X_pending": X_pending,
    }


@register_once(WassersteinUpperConfidenceBound)
def construct_inputs_wasserstein_ucb(
    model: Model,
    contexts: ContextDistribution | Tensor,
    radius: float | Tensor | Callable[[int], float],
    beta: float | Tensor = 2.25,
    context_weights: Tensor | None = None,
    context_indices: Sequence[int] | None = None,
    lipschitz_contexts: Tensor | None = None,
    posterior_transform: PosteriorTransform | None = None,
    maximize: bool = True,
    X_pending: Tensor | None = None,
) -> dict[str, Any]:
    """Arguments of `WassersteinUpperConfidenceBound`; ``beta`` is the paper's by default."""
    return {
        "model": model,
        "beta": beta,
        "radius": radius,
        "contexts": contexts,
        "context_weights": context_weights,
        "context_indices": context_indices,
        "lipschitz_contexts": lipschitz_contexts,
        "maximize": maximize,
        "posterior_transform": posterior_transform,
        "X_pending": X_pending,
    }


@register_once(RobustUpperConfidenceBound)
def construct_inputs_robust_ucb(
    model: Model,
    contexts: ContextDistribution | Tensor,
    ambiguity: AmbiguitySet,
    beta: float | Tensor = 2.25,
    context_weights: Tensor | None = None,
    context_indices: Sequence[int] | None = None,
    lipschitz_contexts: Tensor | None = None,
    posterior_transform: PosteriorTransform | None = None,
    maximize: bool = True,
    X_pending: Tensor | None = None,
) -> dict[str, Any]:
    """Arguments of `RobustUpperConfidenceBound`."""
    return {
        "model": model,
        "beta": beta,
        "ambiguity": ambiguity,
        "contexts": contexts,
        "context_weights": context_weights,
        "context_indices": context_indices,
        "lipschitz_contexts": lipschitz_contexts,
        "maximize": maximize,
        "posterior_transform": posterior_transform,
        "X_pending": X_pending,
    }
