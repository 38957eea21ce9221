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


def as_query(x: Any, dim: int) -> bytes:
    """Convert a query to little-endian doubles.

    Args:
        x: A tensor or array-like of shape ``d`` or ``1 x d``.
        dim: The number ``d``.

    Raises:
        BotorchTensorDimensionError: If ``x`` has another shape.
        InputDataError: If ``x`` holds NaN, infinite values or anything but real numbers.
    """
    if not isinstance(x, Tensor):
        x = torch.from_numpy(_as_doubles(x))
    if x.shape not in ((dim,), (1, dim)):
        raise BotorchTensorDimensionError(
            f"`x` must have shape {dim} or 1 x {dim}, got {tuple(x.shape)}."
        )
    if x.is_complex():
        raise InputDataError("`x` must hold real numbers, got complex ones.")
    values = x.detach().to(device="cpu", dtype=torch.double).reshape(-1)
    return check_finite("x", values).numpy().astype(DOUBLE).tobytes()


def _as_doubles(x: Any) -> NDArray[np.float64]:
    """A writable copy; torch warns about arrays that are read-only."""
    try:
        array = np.asarray(x)
    except ValueError:  # lists of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise InputDataError(f"`x` must hold real numbers, got {x!r}.")
    return array.astype(np.float64)
