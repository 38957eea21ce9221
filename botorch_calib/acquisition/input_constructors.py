"""Registration of the acquisition functions with BoTorch's input constructors (used by Ax)."""

from __future__ import annotations

import inspect
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
from botorch_calib.acquisition.constrained import (
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
)
from botorch_calib.acquisition.delayed import DelayedUpperConfidenceBound
from botorch_calib.acquisition.robust import (
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
    assembled_contexts,
    refuse_pending,
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


def forwarding(
    acqf_class: type[AcquisitionFunction], **defaults: Any
) -> Callable[..., dict[str, Any]]:
    """An input constructor that hands the arguments of a class on to it, by name.

    Where the class has no ``X_pending``, which BoTorch and Ax always give, the constructor takes
    it and refuses pending points.

    Args:
        acqf_class: The class, whose arguments and their defaults are read off its signature.
        defaults: Defaults of arguments that have none in the class, or other ones.
    """
    own = inspect.signature(acqf_class).parameters
    parameters = {
        name: inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, own_parameter.default)
        )
        for name, own_parameter in own.items()
    }
    pending = inspect.Parameter("X_pending", inspect.Parameter.KEYWORD_ONLY, default=None)
    signature = inspect.Signature(list({"X_pending": pending, **parameters}.values()))

    def construct_inputs(**kwargs: Any) -> dict[str, Any]:
        bound = signature.bind(**kwargs)
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        if "X_pending" not in own:
            refuse_pending(acqf_class.__name__, arguments.pop("X_pending"))
        return arguments

    # BoTorch looks here for the names that are accepted, and for a name in its errors.
    construct_inputs.__signature__ = signature  # type: ignore[attr-defined]
    construct_inputs.__name__ = f"construct_inputs_{acqf_class.__name__}"
    return construct_inputs


for _acqf_class in (
    CalibratedUpperConfidenceBound,
    DelayedUpperConfidenceBound,
    DelayedThompsonSampling,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
):
    register_once(_acqf_class)(forwarding(_acqf_class))
# The paper's beta.
register_once(WassersteinUpperConfidenceBound)(
    forwarding(WassersteinUpperConfidenceBound, beta=2.25)
)


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
    """Arguments of `RobustUpperConfidenceBound`, those about contexts as of the Wasserstein one."""
    refuse_pending(RobustUpperConfidenceBound.__name__, X_pending)
    return {
        "model": model,
        "beta": beta,
        "ambiguity": ambiguity,
        "contexts": assembled_contexts(
            contexts, context_weights, context_indices, lipschitz_contexts
        ),
        "posterior_transform": posterior_transform,
        "maximize": maximize,
    }
