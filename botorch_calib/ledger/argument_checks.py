"""Checks of a ledger's arguments, which convert them to plain numbers and bytes."""

from __future__ import annotations

import math
import operator
import reprlib
from numbers import Real
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib._validation import check_finite
from botorch_calib.exceptions import UnknownTrialError

# Little-endian, so that the bytes of a query are the same on every machine.
DOUBLE = np.dtype("<f8")


def as_number(name: str, value: Any, *, finite: bool = True) -> float:
    """Convert a real number, or a tensor or array of one element, to a float.

    Args:
        name: The argument's name, for error messages.
        value: The number.
        finite: Whether infinite values are refused.

    Raises:
        BotorchTensorDimensionError: If ``value`` does not have exactly one element.
        InputDataError: If it is not a real number, is NaN, or is infinite although ``finite``.
    """
    # ``value`` may be anything that an objective returns: ``reprlib`` keeps the text short, and
    # also works if the value's own ``__repr__`` fails.
    shown = reprlib.repr(value)
    if np.ma.is_masked(value):
        raise InputDataError(f"`{name}` must be a real number, got a masked one.")
    if isinstance(value, (Tensor, np.ndarray)):
        if math.prod(value.shape) != 1:
            raise BotorchTensorDimensionError(
                f"`{name}` must be one number, got shape {tuple(value.shape)}."
            )
        value = value.item()
    if not isinstance(value, Real):
        raise InputDataError(f"`{name}` must be a real number, got {shown}.")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isnan(number) or (finite and math.isinf(number)):
        raise InputDataError(f"`{name}` must be a {'finite ' * finite}number, got {shown}.")
    return number


def check_flag(name: str, value: Any) -> bool:
    """Return a truth value as a ``bool``, or raise ``InputDataError``."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputDataError(f"`{name}` must be True or False, got {value!r}.")
    return bool(value)


def as_variance(name: str, value: Any) -> float | None:
    """Convert a variance to a float; None if there is none.

    Raises:
        BotorchTensorDimensionError: If ``value`` does not have exactly one element.
        InputDataError: If it is not a finite number of at least 0.
    """
    if value is None:
        return None
    variance = as_number(name, value) + 0.0  # no -0.0
    if variance < 0.0:
        raise InputDataError(
            f"`{name}` is a variance, the square of a standard deviation: it must be at least 0, "
            f"got {variance!r}."
        )
    return variance


def as_trial_id(value: Any) -> int:
    """Return ``value`` as an integer, or raise ``UnknownTrialError``."""
    try:
        return operator.index(value)
    except TypeError:
        raise UnknownTrialError(f"A trial's id is an integer, got {value!r}.") from None


def as_query(x: Any, dim: int, name: str = "x") -> bytes:
    """Convert a query to little-endian doubles.

    Args:
        x: A tensor or array-like of shape ``d`` or ``1 x d``.
        dim: The number ``d``.
        name: The argument's name, for error messages.

    Raises:
        BotorchTensorDimensionError: If ``x`` has another shape.
        InputDataError: If ``x`` holds NaN, infinite values or anything but real numbers.
    """
    values = _as_tensor(name, x)
    if values.shape not in ((dim,), (1, dim)):
        raise BotorchTensorDimensionError(
            f"`{name}` must have shape {dim} or 1 x {dim}, got {tuple(values.shape)}."
        )
    return _checked_numbers(name, values).reshape(-1).tobytes()


def as_queries(X: Any, dim: int) -> list[bytes]:
    """Convert ``n`` queries, ``n x d``, as `as_query` does with one."""
    values = _as_tensor("X", X)
    if values.dim() != 2 or values.shape[-1] != dim:
        raise BotorchTensorDimensionError(
            f"`X` must have shape n x {dim}, got {tuple(values.shape)}."
        )
    return [row.tobytes() for row in _checked_numbers("X", values)]


def as_values(name: str, values: Any, count: int) -> list[float]:
    """Convert ``count`` numbers, ``n x 1`` or ``n``, to floats.

    Args:
        name: The argument's name, for error messages.
        values: A tensor or array-like.
        count: The number ``n``.

    Raises:
        BotorchTensorDimensionError: If ``values`` has another shape.
        InputDataError: If it holds NaN, infinite values or anything but real numbers.
    """
    tensor = _as_tensor(name, values)
    if tensor.shape not in ((count,), (count, 1)):
        raise BotorchTensorDimensionError(
            f"`{name}` must have shape {count} x 1, one row for each of `X`, got "
            f"{tuple(tensor.shape)}."
        )
    numbers: list[float] = _checked_numbers(name, tensor).reshape(-1).tolist()
    return numbers


def _as_tensor(name: str, values: Any) -> Tensor:
    return values if isinstance(values, Tensor) else torch.from_numpy(_as_doubles(name, values))


def _checked_numbers(name: str, values: Tensor) -> NDArray[np.float64]:
    if values.is_complex():
        raise InputDataError(f"`{name}` must hold real numbers, got complex ones.")
    doubles = values.detach().to(device="cpu", dtype=torch.double)
    array: NDArray[np.float64] = check_finite(name, doubles).numpy().astype(DOUBLE)
    return array


def _as_doubles(name: str, x: Any) -> NDArray[np.float64]:
    """A writable copy; torch warns about arrays that are read-only."""
    try:
        array = np.asarray(x)
    except ValueError:  # lists of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise InputDataError(f"`{name}` must hold real numbers, got {x!r}.")
    return array.astype(np.float64)
