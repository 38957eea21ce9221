"""Registration of the acquisition functions with BoTorch's input constructors (used by Ax).

What they improve upon by default is the best observation, or the best one at which constraints were
observed to hold.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.input_constructors import (
    ACQF_INPUT_CONSTRUCTOR_REGISTRY,
    acqf_input_constructor,
    construct_inputs_qLogNEHVI,
    construct_inputs_qLogNEI,
)
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.acquisition.utils import get_infeasible_cost
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.sampling import draw_sobol_samples
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
from botorch_calib.exceptions import level_of_caller
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.process import observed_process, raw_train_inputs

# Limits by outcome, or functions of samples, as Ax gives them to all.
Constraints = Mapping[int, Limits] | Sequence[Callable[[Tensor], Tensor]] | None
TrainingData = SupervisedDataset | dict[Hashable, SupervisedDataset]
# Points ``n x d`` at which one outcome was observed, and the values ``n``
Observations = tuple[Tensor, Tensor]


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
    """The best observed value of a model's only outcome, in units after the transform."""
    ((_, values),) = _observations([given["model"]], training_data)
    if (transform := given["posterior_transform"]) is not None:
        values = transform.evaluate(values.unsqueeze(-1))
    return values.amax(dim=-1) if given["maximize"] else values.amin(dim=-1)


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
            f"`objective_index` {objective_index} and `posterior_transform`, for {index}, disagree."
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
            "`constraints` must map outcomes to limits (lower, upper), or give `constraints_tuple`."
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


def best_feasible_observation(
    members: Sequence[Model],
    training_data: TrainingData,
    objective_index: int,
    constraints: Mapping[int, Limits],
    maximize: bool,
) -> Tensor:
    """The best observed value of the objective where all constraints were observed to hold.

    If outcomes were observed at different points, a point counts if each constraint was observed
    there, and held each time. If no observation is feasible, the value is as in BoTorch one that
    the objective hardly ever passes: the smallest ``mean - 6 std`` (greatest ``mean + 6 std`` when
    minimising) over the observed points and 32 others around them, or 0 if that is worse. The
    probability of feasibility decides then. ``members`` are models of one outcome each.
    """
    observed = _observations(members, training_data)
    X, values = observed[objective_index]
    feasible = torch.ones_like(values, dtype=torch.bool)
    for i, limits in constraints.items():
        feasible = feasible & _held(limits, observed[i], X)
    if feasible.any():
        values = values[feasible]
        return values.amax() if maximize else values.amin()
    warnings.warn(
        "No observation is feasible: prefer LogCalibratedProbabilityOfFeasibility until one is.",
        BotorchWarning,
        stacklevel=level_of_caller(),
    )
    return _hardly_ever_passed(members[objective_index], X, maximize)


def _observations(members: Sequence[Model], training_data: TrainingData) -> list[Observations]:
    datasets = list(training_data.values()) if isinstance(training_data, dict) else [training_data]
    observed: list[Observations] = [
        (dataset.X, values) for dataset in datasets for values in dataset.Y.unbind(-1)
    ]
    if len(observed) == len(members):
        return observed
    # There are data of other outcomes, and nothing says which. So take the models' own.
    observed = []
    for base in map(observed_process, members):
        X = raw_train_inputs(base)
        if X is None or base.num_outputs != 1 or not hasattr(base, "train_targets"):
            raise NotImplementedError(
                "Give `best_f`: its default needs the data of each of the model's outcomes."
            )
        observed.append((X, raw_train_targets(base).squeeze(-1)))
    return observed


def _held(limits: Limits, observed: Observations, X: Tensor) -> Tensor:
    """For each row of ``X``, whether limits were observed to hold there."""
    (lower, upper), (places, values) = limits, observed
    low, high = (-math.inf if lower is None else lower), (math.inf if upper is None else upper)
    holds = (low <= values) & (values <= high)
    if torch.equal(X, places):
        return holds
    same = (X.unsqueeze(-2) == places.unsqueeze(-3)).all(dim=-1)
    return same.any(dim=-1) & ~(same & ~holds).any(dim=-1)


@torch.no_grad()
def _hardly_ever_passed(model: Model, X: Tensor, maximize: bool) -> Tensor:
    """A value that the outcome of ``model`` is hardly ever worse than, around the points ``X``."""
    low, high = X.amin(dim=-2), X.amax(dim=-2)
    margin = 0.1 * (high - low)
    around = draw_sobol_samples(torch.stack([low - margin, high + margin]), n=32, q=1, seed=0)
    sign = 1.0 if maximize else -1.0
    cost = get_infeasible_cost(
        torch.cat([X, around.squeeze(-2)]),
        model,
        posterior_transform=ScalarizedPosteriorTransform(X.new_tensor([sign])),
    )
    return -sign * cost.squeeze(-1)
