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
    get_acqf_input_constructor,
)
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from torch import Tensor

from botorch_calib.acquisition.base import members_of
from botorch_calib.acquisition.confidence_bound import CalibratedUpperConfidenceBound
from botorch_calib.acquisition.constrained import (
    LogCalibratedConstrainedExpectedImprovement,
    LogCalibratedProbabilityOfFeasibility,
    checked_constraints,
)
from botorch_calib.acquisition.delayed import DelayedUpperConfidenceBound, input_width
from botorch_calib.acquisition.expected_shortfall import CalibratedExpectedShortfall
from botorch_calib.acquisition.improvement import (
    CalibratedExpectedImprovement,
    CalibratedProbabilityOfImprovement,
    LogCalibratedExpectedImprovement,
)
from botorch_calib.acquisition.incumbents import (
    Limits,
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


def register_once(
    *classes: type[AcquisitionFunction],
) -> Callable[[Callable[..., dict[str, Any]]], Callable[..., dict[str, Any]]]:
    """``acqf_input_constructor`` that lets a reloaded module register again."""
    for acqf_class in classes:
        ACQF_INPUT_CONSTRUCTOR_REGISTRY.pop(acqf_class, None)
    return acqf_input_constructor(*classes)


def _register(
    acqf_class: type[AcquisitionFunction],
    adapt: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    required: Sequence[str] = (),
    extra: Sequence[str] = (),
    **defaults: Any,
) -> None:
    """Register a constructor that hands the arguments of a class on to it, by name.

    ``defaults`` are those that the class does not have. The constructor also takes arguments named
    in ``required`` and ``extra``, and ``adapt`` makes arguments of the class from all of them. A
    class without ``X_pending``, which BoTorch and Ax always give, refuses pending points.
    """
    own = inspect.signature(acqf_class).parameters
    parameters = [
        parameter.replace(
            kind=parameter.KEYWORD_ONLY, default=defaults.get(name, parameter.default)
        )
        for name, parameter in own.items()
    ]
    more: dict[str, Any] = {**dict.fromkeys(required, Parameter.empty), **dict.fromkeys(extra)}
    if "X_pending" not in own:
        more["X_pending"] = None
    parameters += [Parameter(name, Parameter.KEYWORD_ONLY, default=d) for name, d in more.items()]
    signature = inspect.Signature(parameters)

    def construct_inputs(**kwargs: Any) -> dict[str, Any]:
        bound = signature.bind(**kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if adapt is not None:
            arguments.update(adapt(arguments))
        if "X_pending" not in own:
            refuse_pending(acqf_class.__name__, arguments["X_pending"])
        return {name: arguments[name] for name in own}

    # BoTorch looks here for the names that are accepted, and for a name in its errors.
    construct_inputs.__signature__ = signature  # type: ignore[attr-defined]
    construct_inputs.__name__ = f"construct_inputs_{acqf_class.__name__}"
    register_once(acqf_class)(construct_inputs)


def _improvement(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The best observation, unless ``best_f`` is given."""
    names = ("model", "training_data", "posterior_transform", "maximize")
    if arguments["best_f"] is not None:
        return {}
    return {"best_f": best_observation(*(arguments[name] for name in names))}


def _own_draw(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """A seed: each proposal needs its own draw, and clients do not count proposals.

    Between two proposals the number of observations grows, or that of pending points, which
    changes the draw as well.
    """
    data: TrainingData = arguments["training_data"]
    datasets = data.values() if isinstance(data, dict) else [data]
    given = arguments["seed"]
    return {"seed": sum(len(each.X) for each in datasets) if given is None else given}


def _limited(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Limits as ``{i: (lower, upper)}``, or by ``constraints_tuple=(A, b)`` with ``A y <= b``."""
    given = arguments["constraints"], arguments["constraints_tuple"]
    return {"constraints": limits_from(*given, arguments["model"].num_outputs)}


def _limited_objective(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The objective by ``objective_index`` or ``posterior_transform``, and limits on the others.

    The transform has a weight for the objective, and 0 for other outcomes; a negative one turns
    ``maximize`` around.
    """
    names = ("model", "objective_index", "posterior_transform")
    index, weight = _objective(*(arguments[name] for name in names))
    maximize = arguments["maximize"] == (weight > 0)
    adapted = {**_limited(arguments), "objective_index": index, "maximize": maximize}
    if arguments["best_f"] is None:
        members, data = members_of(arguments["model"]), arguments["training_data"]
        limits = adapted["constraints"]
        adapted["best_f"] = best_feasible_observation(members, data, index, limits, maximize)
    return adapted


# What the constructor of the function inside of a `RobustAcquisition` gets where it is given.
_HANDED_ON = (
    "training_data",
    "X_pending",
    "X_baseline",
    "bounds",
    "objective",
    "posterior_transform",
    "constraints",
    "constraints_tuple",
    "ref_point",
)


def _inside(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The acquisition function that is made robust, by the input constructor of its class.

    ``acqf_class`` is its class, such as `LogCalibratedExpectedImprovement`, and ``acqf_options``
    are its arguments by name, such as ``{"level": 0.9}``. ``X_pending``, ``X_baseline`` and
    ``bounds`` are of decisions and contexts.
    """
    names = ("model", "acqf_class", "acqf_options", "X_pending")
    model, acqf_class, options, X_pending = (arguments[name] for name in names)
    if not (isinstance(acqf_class, type) and issubclass(acqf_class, AcquisitionFunction)):
        raise InputDataError(
            "`acqf_class` must be the class of the acquisition function that is made robust, such "
            f"as LogCalibratedExpectedImprovement, got {acqf_class!r}."
        )
    if not isinstance(options, Mapping | None):
        raise InputDataError(
            f"`acqf_options` must map names to arguments, got a {type(options).__name__}."
        )
    width = input_width(model)
    if X_pending is not None and width is not None and X_pending.shape[-1:] != (width,):
        refuse_pending(RobustAcquisition.__name__, X_pending)
    given = {name: arguments[name] for name in _HANDED_ON if arguments[name] is not None}
    construct = get_acqf_input_constructor(acqf_class)
    inside = acqf_class(**construct(model=model, **{**given, **(options or {})}))
    return {"acquisition": inside, "X_pending": None}


_DATA = ["training_data"]
_register(CalibratedExpectedImprovement, _improvement, _DATA, best_f=None)
_register(LogCalibratedExpectedImprovement, _improvement, _DATA, best_f=None)
_register(CalibratedProbabilityOfImprovement, _improvement, _DATA, best_f=None)
_register(CalibratedUpperConfidenceBound)
_register(CalibratedExpectedShortfall)
_register(DelayedUpperConfidenceBound)
_register(DelayedThompsonSampling, _own_draw, _DATA, seed=None)
_register(WassersteinUpperConfidenceBound, beta=2.25)  # the paper's
_register(RobustUpperConfidenceBound, beta=2.25)
_register(
    RobustAcquisition,
    _inside,
    ["model", "acqf_class"],
    ["acqf_options", *_HANDED_ON],
    acquisition=None,
)
_register(
    LogCalibratedProbabilityOfFeasibility, _limited, extra=["constraints_tuple"], constraints=None
)
_register(
    LogCalibratedConstrainedExpectedImprovement,
    _limited_objective,
    _DATA,
    ["constraints_tuple", "posterior_transform"],
    best_f=None,
    objective_index=None,
    constraints=None,
)
# Their arguments are those of BoTorch's classes.
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
        named = weights.index(weight)
        if index is not None and index % num != named:
            raise InputDataError(
                f"`objective_index` {index} and `posterior_transform` disagree: the latter weighs "
                f"outcome {named}."
            )
        index = named
    if index is None or not -num <= index < num:
        raise InputDataError(f"`objective_index` must name one of {num} outcomes, got {index}.")
    return index % num, weight


def limits_from(
    constraints: Any, constraints_tuple: tuple[Tensor, Tensor] | None, num_outputs: int
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
