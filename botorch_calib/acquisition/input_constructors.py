"""Registration of the acquisition functions with BoTorch's input constructors (used by Ax)."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.input_constructors import (
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
    acqf_input_constructor,
    construct_inputs_qLogNEHVI,
    construct_inputs_qLogNEI,
)
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from torch import Tensor

from botorch_calib.acquisition.base import members_of
from botorch_calib.acquisition.confidence_bound import (
    CalibratedExpectedShortfall,
    CalibratedUpperConfidenceBound,
)
from botorch_calib.acquisition.constrained import (
    Limits,
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    checked_constraints,
)
from botorch_calib.acquisition.delayed import DelayedUpperConfidenceBound
from botorch_calib.acquisition.improvement import (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.acquisition.incumbents import (
    TrainingData,
    best_feasible_observation,
    best_observation,
)
from botorch_calib.acquisition.noisy import (
    qLogCalibratedNoisyExpectedHypervolumeImprovement,
    qLogCalibratedNoisyExpectedImprovement,
)
from botorch_calib.acquisition.robust import (
    RobustAcquisition,
    RobustUpperConfidenceBound,
    WassersteinUpperConfidenceBound,
    refuse_pending,
)
from botorch_calib.acquisition.thompson import DelayedThompsonSampling

# Limits by outcome, or functions of samples, as Ax gives them to all.
Constraints = Mapping[int, Limits] | Sequence[Callable[[Tensor], Tensor]] | None


def register_once(
    *classes: type[AcquisitionFunction],
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """``acqf_input_constructor`` that lets a reloaded module register again."""
    for acqf_class in classes:
        ACQF_INPUT_CONSTRUCTOR_REGISTRY.pop(acqf_class, None)
    return acqf_input_constructor(*classes)


def register_own_arguments(*classes: type[AcquisitionFunction], **defaults: object) -> None:
    """Register constructors that pass on the arguments of each class, with other ``defaults``.

    A function among these makes an argument that is not given, from the others and the training
    data. BoTorch and Ax always give ``X_pending``: a class without that argument refuses points.
    """
    for acqf_class in classes:
        register_once(acqf_class)(_constructor(acqf_class, defaults))


def _constructor(
    acqf_class: type[AcquisitionFunction], defaults: Mapping[str, object]
) -> Callable[..., dict[str, Any]]:
    own = inspect.signature(acqf_class).parameters
    made = {name: default for name, default in defaults.items() if callable(default)}
    others = {**defaults, **dict.fromkeys(made)}
    parameters = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY, default=others.get(name, parameter.default))
        for name, parameter in own.items()
    ]
    if made:
        parameters.append(Parameter("training_data", Parameter.KEYWORD_ONLY))
    if "X_pending" not in own:
        parameters.append(Parameter("X_pending", Parameter.KEYWORD_ONLY, default=None))
    signature = inspect.Signature(parameters)

    def construct_inputs(**given: object) -> dict[str, Any]:
        bound = signature.bind(**given)
        bound.apply_defaults()
        arguments = bound.arguments
        training_data = arguments.pop("training_data", None)
        for name in made:
            if arguments[name] is None:
                arguments[name] = made[name](arguments, training_data)
        if "X_pending" not in own:
            refuse_pending(acqf_class.__name__, arguments.pop("X_pending"))
        return arguments

    construct_inputs.__signature__ = signature  # type: ignore[attr-defined]
    return construct_inputs


def _best_observation(given: Mapping[str, Any], training_data: TrainingData) -> Tensor:
    transform = given["posterior_transform"]
    return best_observation(given["model"], training_data, transform, given["maximize"])


def _num_observations(_: Mapping[str, Any], training_data: TrainingData) -> int:
    """A seed for each proposal, as clients count none.

    Between two proposals either this number or the number of pending points grows, which changes
    the draw as well.
    """
    several = training_data.values() if isinstance(training_data, dict) else [training_data]
    return sum(len(dataset.X) for dataset in several)


register_own_arguments(
    CalibratedUpperConfidenceBound,
    CalibratedExpectedShortfall,
    DelayedUpperConfidenceBound,
    RobustAcquisition,
)
register_own_arguments(RobustUpperConfidenceBound, WassersteinUpperConfidenceBound, beta=2.25)
register_own_arguments(
    CalibratedExpectedImprovement,
    LogCalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    best_f=_best_observation,
)
register_own_arguments(DelayedThompsonSampling, seed=_num_observations)


@register_once(LogCalibratedProbabilityOfFeasibility)
def construct_inputs_probability_of_feasibility(
    model: Model,
    constraints: Constraints = None,
    constraints_tuple: tuple[Tensor, Tensor] | None = None,
    X_pending: Tensor | None = None,
    num_fantasies: int = 16,
) -> dict[str, Any]:
    """Limits by outcome, see `limits_from`."""
    arguments = locals()
    pair = arguments.pop("constraints_tuple")
    return {**arguments, "constraints": limits_from(constraints, pair, model.num_outputs)}


@register_once(LogCalibratedConstrainedExpectedImprovement)
def construct_inputs_constrained_improvement(
    model: Model,
    training_data: TrainingData,
    best_f: float | Tensor | None = None,
    objective_index: int | None = None,
    constraints: Constraints = None,
    constraints_tuple: tuple[Tensor, Tensor] | None = None,
    posterior_transform: PosteriorTransform | None = None,
    maximize: bool = True,
    X_pending: Tensor | None = None,
    num_fantasies: int = 16,
) -> dict[str, Any]:
    """Limits by outcome, see `limits_from`, and improvement over the best feasible observation.

    The objective is ``objective_index``, or the outcome that ``posterior_transform`` weighs; a
    negative weight turns ``maximize`` around.
    """
    limits = limits_from(constraints, constraints_tuple, model.num_outputs)
    index, weight = _objective(model, objective_index, posterior_transform)
    maximize = maximize == (weight > 0)
    if best_f is None:
        members = members_of(model)
        best_f = best_feasible_observation(members, training_data, index, limits, maximize)
    return {
        "model": model,
        "best_f": best_f,
        "objective_index": index,
        "constraints": limits,
        "maximize": maximize,
        "X_pending": X_pending,
        "num_fantasies": num_fantasies,
    }


# They take the arguments of BoTorch's classes.
register_once(qLogCalibratedNoisyExpectedImprovement)(construct_inputs_qLogNEI)
register_once(qLogCalibratedNoisyExpectedHypervolumeImprovement)(construct_inputs_qLogNEHVI)


def _objective(
    model: Model, objective_index: int | None, transform: PosteriorTransform | None
) -> tuple[int, float]:
    """The index of the objective, at least 0, and its weight."""
    num, index, weight = model.num_outputs, objective_index, 1.0
    if transform is not None:
        if not isinstance(transform, ScalarizedPosteriorTransform):
            raise UnsupportedError(
                f"`posterior_transform` {type(transform).__name__} does not tell which outcome is "
                "the objective: give `objective_index`, or a ScalarizedPosteriorTransform."
            )
        weights: list[float] = transform.get_buffer("weights").tolist()
        if len(weights) != num or weights.count(0.0) != num - 1:
            raise UnsupportedError(
                "`posterior_transform` must weigh one of the model's outcomes, got the weights "
                f"{weights} for {num}. qLogNoisyExpectedImprovement, a Monte Carlo acquisition "
                "function, finds the constrained improvement of a sum of outcomes."
            )
        weight = sum(weights)
        index = weights.index(weight)
    if index is None or not -num <= index < num:
        raise InputDataError(f"`objective_index` must name one of {num} outcomes, got {index}.")
    if objective_index is not None and objective_index % num != index % num:
        raise InputDataError(
            f"`objective_index` {objective_index} and `posterior_transform` disagree: the latter "
            f"weighs outcome {index}."
        )
    return index % num, weight


def limits_from(
    constraints: Constraints, constraints_tuple: tuple[Tensor, Tensor] | None, num_outputs: int
) -> dict[int, Limits]:
    """Checked limits by outcome, from whichever of the two forms is given.

    The second is ``(A, b)``, ``k x m`` and ``k x 1``, for ``A y <= b`` with one outcome in each
    row. Several limits on one outcome meet in the narrowest. (BoTorch keeps the last.)
    """
    if isinstance(constraints, Mapping):  # Ax gives functions of samples as well
        return checked_constraints(constraints, num_outputs)
    if constraints_tuple is None:
        raise InputDataError(
            "`constraints` must map outcomes to their limits (lower, upper), or "
            "`constraints_tuple` be given."
        )
    A, b = constraints_tuple
    limits: dict[int, tuple[float, float]] = {}
    for weights, bound in zip(A.tolist(), b.reshape(-1).tolist(), strict=True):
        named = [i for i, weight in enumerate(weights) if weight != 0.0]
        if len(named) != 1:
            raise UnsupportedError(
                "`constraints_tuple` must bind one outcome at a time, as a closed form needs "
                f"limits, got the weights {weights}. Monte Carlo acquisition functions, such as "
                "qLogNoisyExpectedImprovement, take constraints on sums of outcomes."
            )
        (i,) = named
        limit, (lower, upper) = bound / weights[i], limits.get(i, (-math.inf, math.inf))
        if weights[i] > 0:
            limits[i] = lower, min(limit, upper)
        else:
            limits[i] = max(limit, lower), upper
    return checked_constraints(limits, num_outputs)
