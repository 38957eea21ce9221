"""Register the acquisition functions with BoTorch's input constructors, which Ax uses.

The incumbent ``best_f`` defaults to the best observation; with constraints, to the best observation
at a point where the constraints were observed to hold.
"""

from __future__ import annotations

import inspect
import math
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
from botorch.exceptions import BotorchWarning, InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.utils import draw_sobol_samples
from botorch.utils.datasets import SupervisedDataset
from torch import Tensor

from botorch_calib.acquisition import (
    confidence_bound,
    constrained,
    delayed,
    improvement,
    noisy,
    robust,
    thompson,
)
from botorch_calib.acquisition.base import members_of
from botorch_calib.acquisition.constrained import Limits, checked_constraints
from botorch_calib.exceptions import warn
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.predict import mean_and_deviation
from botorch_calib.models.process import (
    in_output_task,
    observed_process,
    raw_train_inputs,
    without_task_feature,
)

# A mapping from outcome indices to limits, or the functions of samples that Ax passes to every
# acquisition function. A closed form cannot use these functions, so they are ignored.
Constraints = Mapping[int, Limits] | Sequence[Callable[[Tensor], Tensor]] | None
TrainingData = SupervisedDataset | dict[Hashable, SupervisedDataset]
# Points ``n x d`` at which one outcome was observed, and the observed values ``n``
Observations = tuple[Tensor, Tensor]


def register_once(
    *classes: type[AcquisitionFunction],
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """Return the decorator ``acqf_input_constructor(*classes)``.

    Earlier registrations are removed, since BoTorch raises an error if a class is registered twice,
    for example by a reloaded module.
    """
    for acqf_class in classes:
        ACQF_INPUT_CONSTRUCTOR_REGISTRY.pop(acqf_class, None)
    return acqf_input_constructor(*classes)


def register_own_arguments(*classes: type[AcquisitionFunction], **defaults: object) -> None:
    """Register an input constructor for each class, which returns the arguments that it is given.

    ``defaults`` are values for arguments of the classes that are not given. If a default is a
    function ``f``, it is called as ``f(arguments, training_data)`` when the argument is missing or
    None, and returns the argument. BoTorch and Ax always pass ``X_pending``. If a class has no such
    argument, pending points raise ``UnsupportedError``.
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
            robust.refuse_pending(acqf_class.__name__, arguments.pop("X_pending"))
        return arguments

    construct_inputs.__signature__ = signature  # type: ignore[attr-defined]
    return construct_inputs


def _best_observation(given: Mapping[str, Any], training_data: TrainingData) -> Tensor:
    """The best observed value of the only outcome, after ``given["posterior_transform"]``."""
    ((_, values),) = _observations([given["model"]], training_data)
    if (transform := given["posterior_transform"]) is not None:
        values = transform.evaluate(values.unsqueeze(-1))
    return values.amax(dim=-1) if given["maximize"] else values.amin(dim=-1)


def _num_observations(_: Mapping[str, Any], training_data: TrainingData) -> int:
    """Number of observations, which is the default seed, since clients such as Ax pass no seed.

    Between two proposals the number of observations or of pending points grows. The draw depends on
    both, so each proposal uses a new draw.
    """
    several = training_data.values() if isinstance(training_data, dict) else [training_data]
    return sum(len(dataset.X) for dataset in several)


register_own_arguments(
    confidence_bound.CalibratedUpperConfidenceBound,
    confidence_bound.CalibratedExpectedShortfall,
    delayed.DelayedUpperConfidenceBound,
    robust.RobustAcquisition,
)
register_own_arguments(
    robust.RobustUpperConfidenceBound, robust.WassersteinUpperConfidenceBound, beta=2.25
)
register_own_arguments(
    improvement.CalibratedExpectedImprovement,
    improvement.LogCalibratedExpectedImprovement,
    improvement.CalibratedProbabilityOfImprovement,
    best_f=_best_observation,
)
register_own_arguments(thompson.DelayedThompsonSampling, seed=_num_observations)
# These classes have the same arguments as BoTorch's classes, so BoTorch's constructors serve them.
register_once(noisy.qLogCalibratedNoisyExpectedImprovement)(construct_inputs_qLogNEI)
register_once(noisy.qLogCalibratedNoisyExpectedHypervolumeImprovement)(construct_inputs_qLogNEHVI)


@register_once(constrained.LogCalibratedProbabilityOfFeasibility)
def construct_inputs_probability_of_feasibility(
    model: Model,
    constraints: Constraints = None,
    constraints_tuple: tuple[Tensor, Tensor] | None = None,
    X_pending: Tensor | None = None,
    num_fantasies: int = 16,
) -> dict[str, Any]:
    """Return the arguments of the class; `limits_from` converts the constraints to limits."""
    arguments = locals()
    pair = arguments.pop("constraints_tuple")
    return {**arguments, "constraints": limits_from(constraints, pair, model.num_outputs)}


@register_once(constrained.LogCalibratedConstrainedExpectedImprovement)
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
    """Return the arguments of the class; `limits_from` converts the constraints to limits.

    ``best_f`` defaults to `best_feasible_observation`. The objective is the outcome with the index
    ``objective_index``, or the only outcome with a nonzero weight in ``posterior_transform``. If
    this weight is negative, ``maximize`` is inverted.
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


def _objective(
    model: Model, objective_index: int | None, transform: PosteriorTransform | None
) -> tuple[int, float]:
    """The nonnegative index of the objective, and its weight in ``transform`` (1 if it is None)."""
    num, index, weight = model.num_outputs, objective_index, 1.0
    if transform is not None:
        if not isinstance(transform, ScalarizedPosteriorTransform):
            raise UnsupportedError(
                f"The objective is unclear from the {type(transform).__name__} given as "
                "`posterior_transform`: give `objective_index`, or a ScalarizedPosteriorTransform."
            )
        weights: list[float] = transform.get_buffer("weights").tolist()
        if len(weights) != num or weights.count(0.0) != num - 1:
            raise UnsupportedError(
                "`posterior_transform` must have one nonzero weight, got the weights "
                f"{weights} for {num} outcomes. For the constrained improvement of a sum of "
                "outcomes use a Monte Carlo acquisition function such as "
                "qLogNoisyExpectedImprovement."
            )
        weight = sum(weights)
        index = weights.index(weight)
    if index is None or not -num <= index < num:
        raise InputDataError(f"`objective_index` must name one of {num} outcomes, got {index}.")
    if objective_index is not None and objective_index % num != index % num:
        raise InputDataError(
            f"`objective_index` is {objective_index}, but `posterior_transform` selects {index}."
        )
    return index % num, weight


def limits_from(
    constraints: Constraints, constraints_tuple: tuple[Tensor, Tensor] | None, num_outputs: int
) -> dict[int, Limits]:
    """Return checked limits of outcomes, by index, from ``constraints`` or ``constraints_tuple``.

    ``constraints`` is used if it is a mapping. Otherwise ``constraints_tuple`` is a pair of ``A``,
    ``k x m``, and ``b``, ``k x 1``, for the constraints ``A y <= b`` on the ``m`` outcomes ``y``.
    Each row of ``A`` must have one nonzero weight. If several rows limit an outcome from the same
    side, the narrowest limit is used. (BoTorch uses the limit in the last row.)
    """
    if isinstance(constraints, Mapping):  # otherwise None, or functions from Ax
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
                "Each row of `constraints_tuple` must limit one outcome, as a closed form needs "
                f"limits, got the weights {weights}. For constraints on sums of outcomes use Monte "
                "Carlo acquisition functions such as qLogNoisyExpectedImprovement."
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
    """The best observed value of the objective at points where all constraints held.

    If outcomes were observed at different points, a point is feasible if each constrained outcome
    was observed at it and met its limits each time. If no observation is feasible, the result is a
    value that is almost surely worse than the objective, as in BoTorch: the smallest posterior
    ``mean - 6 std`` (greatest ``mean + 6 std`` when minimising) over the observed points and 32
    points around them, or 0 if 0 is worse. Then the probability of feasibility dominates the
    acquisition function. The ``members`` are models of one outcome each, in the order of outcomes.

    Warns:
        BotorchWarning: If no observation is feasible.
    """
    observed = _observations(members, training_data)
    X, values = observed[objective_index]
    held = [_held(limits, observed[i], X) for i, limits in constraints.items()]
    feasible = torch.stack(held).all(dim=0)
    if feasible.any():
        values = values[feasible]
        return values.amax() if maximize else values.amin()
    warn(
        "No observation is feasible: use LogCalibratedProbabilityOfFeasibility until one is.",
        BotorchWarning,
    )
    return _hardly_ever_passed(members[objective_index], X, maximize)


def _observations(members: Sequence[Model], training_data: TrainingData) -> list[Observations]:
    datasets = list(training_data.values()) if isinstance(training_data, dict) else [training_data]
    observed: list[Observations] = [
        (dataset.X, values) for dataset in datasets for values in dataset.Y.unbind(-1)
    ]
    if len(observed) != len(members):
        # The data do not have one column per model, so use the models' own training data.
        observed = [*map(_trained_on, map(observed_process, members))]
    return [*map(_of_output_task, members, observed)]


def _trained_on(process: Any) -> Observations:
    X = raw_train_inputs(process)
    if X is None or process.num_outputs != 1 or not hasattr(process, "train_targets"):
        raise NotImplementedError(
            "Give `best_f`: its default needs the data of each of the model's outcomes."
        )
    return X, raw_train_targets(process).squeeze(-1)


def _of_output_task(model: Model, observed: Observations) -> Observations:
    """The observations of the task that a multi-task model predicts; all, of other models.

    The points have no task column, so that they can be compared with points of other models.
    """
    X, values = observed
    own = in_output_task(model, X)
    if not own.any():
        raise NotImplementedError("Give `best_f`: the output task has not been observed.")
    return without_task_feature(model, X[own]), values[own]


def _held(limits: Limits, observed: Observations, X: Tensor) -> Tensor:
    """Return, for each row of ``X``, whether an outcome was observed there and met its limits.

    If it was observed several times, it must have met the limits each time.
    """
    places, values = observed
    holds = values.clamp(*limits) == values
    if torch.equal(X, places):
        return holds
    same = (X.unsqueeze(-2) == places.unsqueeze(-3)).all(dim=-1)
    return same.any(dim=-1) & ~(same & ~holds).any(dim=-1)


@torch.no_grad()
def _hardly_ever_passed(model: Model, X: Tensor, maximize: bool) -> Tensor:
    """A value that is almost surely worse than the outcome at and around the points ``X``.

    Worse means less, or greater if ``maximize`` is False.
    """
    low, high = X.aminmax(dim=-2)
    margin = 0.1 * (high - low)
    around = draw_sobol_samples(torch.stack([low - margin, high + margin]), n=32, q=1, seed=0)
    sign = 1.0 if maximize else -1.0
    points = torch.cat([X, around.squeeze(-2)]).unsqueeze(-2)
    mean, deviation = mean_and_deviation(model, points)
    return sign * (sign * mean - 6.0 * deviation).min().clamp_max(0.0)
