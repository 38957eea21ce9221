"""Checks of arguments: each returns a valid one, or raises a ``botorch.exceptions`` error.

Errors name the argument. Public entry points validate before they change anything.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.model import Model
from torch import Tensor


def _number(value: Any) -> float:
    """A number; NaN for anything else, such as a string that reads as one, or a boolean."""
    return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan


def _element(value: Any) -> Any:
    """The one element of a tensor or an array, as of a number that was computed."""
    is_array = isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1
    return value.item() if is_array else value


def check_number(name: str, value: float) -> float:
    """A finite number, which may be the one element of a tensor."""
    if not math.isfinite(number := _number(_element(value))):
        raise InputDataError(f"`{name}` must be a finite number, got {value!r}.")
    return number


def check_open_unit(name: str, value: float) -> float:
    """A number strictly between 0 and 1."""
    if not 0.0 < (number := _number(value)) < 1.0:
        raise InputDataError(
            f"`{name}` must be a number in the open interval (0, 1), got {value!r}."
        )
    return number


def check_positive(name: str, value: float, *, allow_inf: bool = False) -> float:
    """A positive number, infinite only if ``allow_inf``."""
    if not (number := _number(value)) > 0.0 or (math.isinf(number) and not allow_inf):
        raise InputDataError(f"`{name}` must be a positive number, got {value!r}.")
    return number


def check_nonnegative(name: str, value: float | Tensor) -> float:
    """A finite number of at least 0, which may be the one element of a tensor."""
    if not 0.0 <= (number := _number(_element(value))) < math.inf:
        raise InputDataError(f"`{name}` must be a finite number of at least 0, got {value!r}.")
    return number


def check_limit(name: str, limit: float | None) -> float | None:
    """A finite number, which may be the one element of a tensor, or None."""
    if limit is not None and not math.isfinite(number := _number(_element(limit))):
        raise InputDataError(f"`{name}` must be a finite number or None, got {limit!r}.")
    return None if limit is None else number


def check_count(name: str, value: Any, least: int = 1) -> int:
    """An integer of at least ``least``, as an ``int``; NumPy's count, booleans do not."""
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    # A boolean is an index in Python, but never a count that somebody meant.
    if count is None or count < least or isinstance(value, bool):
        raise InputDataError(f"`{name}` must be an integer of at least {least}, got {value!r}.")
    return count


def check_flag(name: str, value: Any) -> bool:
    """True or False, as a ``bool``; a text such as "False" would count as True."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputDataError(f"`{name}` must be True or False, got {value!r}.")
    return bool(value)


def check_list(name: str, values: Any, of: str) -> list[Any]:
    """The elements of a sequence ``of`` something, as a list."""
    try:
        return [*values]
    except TypeError:
        raise InputDataError(
            f"`{name}` must be a list of {of}, got {type(values).__name__}."
        ) from None


def check_columns(name: str, columns: Any) -> tuple[int, ...]:
    """Column numbers, as a tuple of ``int``; booleans, floats and strings are refused."""
    try:
        if any(isinstance(column, bool) for column in columns):
            raise TypeError
        return tuple(operator.index(column) for column in columns)
    except TypeError:
        raise InputDataError(
            f"`{name}` must be a sequence of integers, one for each column, got {columns!r}."
        ) from None


def check_fixed_features(fixed: Any, num: int) -> dict[int, float]:
    """Values of fixed features by column, counted from the front; an empty dictionary for None."""
    if not isinstance(fixed, Mapping | None):
        raise InputDataError(
            "`fixed_features` must be a dictionary from columns to values, got "
            f"{type(fixed).__name__}."
        )
    checked: dict[int, float] = {}
    for column, value in (fixed or {}).items():
        if not isinstance(column, Integral) or not -num <= int(column) < num:
            raise InputDataError(f"`fixed_features` names column {column!r} of {num} columns.")
        if int(column) % num in checked:
            raise InputDataError(f"`fixed_features` names column {column} twice.")
        number = check_finite("fixed_features", check_numbers("fixed_features", value))
        if number.numel() != 1:
            raise BotorchTensorDimensionError(
                f"`fixed_features` must hold one number for column {column}, got {value!r}."
            )
        checked[int(column) % num] = float(number)
    return checked


def check_one_of(name: str, value: Any, known: Collection[Any]) -> Any:
    """One of the ``known`` values."""
    if value not in known:
        choices = ", ".join(map(repr, known))
        raise InputDataError(f"`{name}` must be one of {choices}, got {value!r}.")
    return value


def check_tensor(name: str, value: Any) -> Tensor:
    """A tensor."""
    if not isinstance(value, Tensor):
        raise InputDataError(
            f"`{name}` must be a tensor, got {type(value).__name__}: convert it by "
            "`torch.as_tensor`, in the precision of the model."
        )
    return value


def check_instance(name: str, value: Any, kind: Any, example: str = "") -> Any:
    """An object of a class, such as the ``example``."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        such = f" such as {example}" if example else ""
        raise InputDataError(
            f"`{name}` must be {article} {kind.__name__}{such}, got {type(value).__name__}."
        )
    return value


def check_model(model: Any) -> Model:
    """A BoTorch model."""
    if not isinstance(model, Model):
        raise UnsupportedError(
            f"`model` must be a BoTorch model such as SingleTaskGP, got {type(model).__name__}."
        )
    return model


def check_acquisition(acq_function: Any) -> None:
    """An acquisition function."""
    if not isinstance(acq_function, AcquisitionFunction):
        raise UnsupportedError(
            f"`acq_function` must be an acquisition function, got {type(acq_function).__name__}."
        )


def check_bounds(bounds: Any) -> Tensor:
    """Finite lower and upper bounds ``2 x d``, in order."""
    check_tensor("bounds", bounds)
    if bounds.dim() != 2 or len(bounds) != 2:
        raise BotorchTensorDimensionError(
            f"`bounds` must have shape 2 x d, got {tuple(bounds.shape)}."
        )
    if not bounds.is_floating_point():
        raise InputDataError(f"`bounds` must be floating-point numbers, got {bounds.dtype}.")
    if (check_finite("bounds", bounds)[0] > bounds[1]).any():
        raise InputDataError("`bounds` must hold the lower bounds first, then the upper ones.")
    return bounds


def in_double(name: str, value: Any, device: torch.device | None = None) -> Tensor:
    """A number or a tensor of numbers, NaN among them, as a tensor in double precision."""
    if isinstance(value, Tensor):
        return value.to(device, torch.double)
    try:
        return torch.tensor(value, dtype=torch.double, device=device)
    except (TypeError, ValueError, RuntimeError):
        raise InputDataError(f"`{name}` must be a number or a tensor, got {value!r}.") from None


def check_numbers(name: str, value: Any) -> Tensor:
    """One number or a tensor of numbers, none NaN, as a tensor: in double precision if new."""
    numbers = value if isinstance(value, Tensor) else in_double(name, value)
    if numbers.is_complex() or not numbers.numel() or numbers.isnan().any():
        raise InputDataError(f"`{name}` must hold real numbers, none of them NaN, got {value}.")
    return numbers


def check_finite(name: str, value: Tensor) -> Tensor:
    """A tensor without NaN and infinity."""
    if not torch.isfinite(check_tensor(name, value)).all():
        raise InputDataError(f"`{name}` contains NaN or infinite values.")
    return value


def as_written(number: float) -> float:
    """The shortest decimal that is this number in single precision.

    0.8 in single precision is 0.80000001 in double, and would not meet a limit of 0.8.
    """
    return float(str(np.float32(number)))


def numbers_of(values: Tensor) -> list[float]:
    """A vector as numbers, those in single precision `as_written`."""
    numbers = map(float, values.tolist())
    return [*map(as_written, numbers)] if values.dtype == torch.float else [*numbers]


def check_variances(name: str, value: Any) -> Tensor:
    """A tensor of finite numbers of at least 0."""
    if check_tensor(name, value).is_complex():
        raise InputDataError(f"`{name}` must hold real numbers, got {value.dtype}.")
    if not (check_finite(name, value) >= 0).all():
        raise InputDataError(f"`{name}` must hold variances, of at least 0.")
    return value


def check_precision(name: str, values: Tensor, dtype: torch.dtype) -> None:
    """Raise ``InputDataError`` unless ``values`` have the precision ``dtype`` of the model."""
    if values.dtype != dtype:
        is_real = values.is_floating_point()
        otherwise = f", or fit the model to data in {values.dtype}" if is_real else ""
        raise InputDataError(
            f"`{name}` must have the precision of the model, {dtype}, got {values.dtype}: give "
            f"`{name}.to({dtype})`{otherwise}."
        )


def check_unit_interval(name: str, value: Tensor) -> Tensor:
    """A tensor of numbers in [0, 1]."""
    check_finite(name, value)
    if ((value < 0) | (value > 1)).any():
        raise InputDataError(f"`{name}` must lie in [0, 1].")
    return value


def check_levels(name: str, levels: Tensor) -> Tensor:
    """A strictly increasing vector inside (0, 1)."""
    if check_tensor(name, levels).dim() != 1 or levels.numel() == 0:
        raise BotorchTensorDimensionError(
            f"`{name}` must be a non-empty vector, got shape {tuple(levels.shape)}."
        )
    check_finite(name, levels)
    if ((levels <= 0) | (levels >= 1)).any() or (levels.diff() <= 0).any():
        raise InputDataError(f"`{name}` must increase strictly and lie in the open (0, 1).")
    return levels


def check_inputs(name: str, X: Tensor, num_dims: int | None = None) -> Tensor:
    """A finite ``n x d`` matrix, ``d`` being ``num_dims`` if given."""
    check_tensor(name, X)
    if X.dim() != 2 or (num_dims is not None and X.shape[-1] != num_dims):
        width = "d" if num_dims is None else str(num_dims)
        raise BotorchTensorDimensionError(
            f"`{name}` must have shape n x {width}, got {tuple(X.shape)}."
        )
    return check_finite(name, X)


def check_pending_inputs(X_pending: Any) -> Tensor | None:
    """Pending points as a finite ``n x d`` matrix, or None if there are none."""
    if X_pending is None or not check_tensor("X_pending", X_pending).numel():
        return None
    return check_inputs("X_pending", X_pending)


def check_width(X: Tensor, width: int) -> None:
    """Raise unless ``X`` has the shape ``... x width``; a width of 0 stands for any."""
    if check_tensor("X", X).dim() == 0 or (width and X.shape[-1] != width):
        raise BotorchTensorDimensionError(
            f"`X` must have shape ... x {width or 'd'}, got {tuple(X.shape)}."
        )
