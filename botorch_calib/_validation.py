"""Checks of arguments, each raising a ``botorch.exceptions`` error that names the argument.

Every public entry point validates before it changes anything, so a call that fails
leaves its object as it was.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Collection
from numbers import Real
from typing import Any

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor


def check_open_unit(name: str, value: float) -> float:
    """Return ``value`` if it lies strictly between 0 and 1, else raise ``InputDataError``."""
    if not (isinstance(value, Real) and 0.0 < value < 1.0):
        raise InputDataError(f"`{name}` must lie in the open interval (0, 1), got {value!r}.")
    return float(value)


def check_positive(name: str, value: float, *, allow_inf: bool = False) -> float:
    """Return ``value`` if it is a positive (optionally infinite) number, else raise."""
    valid = isinstance(value, Real) and value > 0.0
    if not valid or (math.isinf(value) and not allow_inf):
        raise InputDataError(f"`{name}` must be a positive number, got {value!r}.")
    return float(value)


def check_nonnegative(name: str, value: float) -> float:
    """Return ``value`` if it is a finite number of at least 0, else raise ``InputDataError``."""
    if not (isinstance(value, Real) and 0.0 <= value < math.inf):
        raise InputDataError(f"`{name}` must be a finite number of at least 0, got {value!r}.")
    return float(value)


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an ``int`` if it is an integer of at least ``least``, else raise.

    Integers of NumPy count, booleans do not.
    """
    try:
        count = operator.index(value)
    except TypeError:
        count = None
    # A boolean is an index in Python, but never a count that somebody meant.
    if count is None or count < least or isinstance(value, bool):
        raise InputDataError(f"`{name}` must be an integer of at least {least}, got {value!r}.")
    return count


def check_columns(name: str, columns: Any) -> tuple[int, ...]:
    """Return column numbers as a tuple of ``int`` if they are integers, else raise.

    Booleans, floats and strings are refused.
    """
    try:
        if any(isinstance(column, bool) for column in columns):
            raise TypeError
        return tuple(operator.index(column) for column in columns)
    except TypeError:
        raise InputDataError(
            f"`{name}` must be a sequence of integers, one for each column, got {columns!r}."
        ) from None


def check_one_of(name: str, value: Any, known: Collection[Any]) -> Any:
    """Return ``value`` if it is among ``known``, else raise ``InputDataError``."""
    if value not in known:
        choices = ", ".join(map(repr, known))
        raise InputDataError(f"`{name}` must be one of {choices}, got {value!r}.")
    return value


def check_finite(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if it holds neither NaN nor infinity, else raise ``InputDataError``."""
    if not torch.isfinite(value).all():
        raise InputDataError(f"`{name}` contains NaN or infinite values.")
    return value


def check_unit_interval(name: str, value: Tensor) -> Tensor:
    """Return ``value`` if every element lies in [0, 1], else raise ``InputDataError``."""
    check_finite(name, value)
    if ((value < 0) | (value > 1)).any():
        raise InputDataError(f"`{name}` must lie in [0, 1].")
    return value


def check_levels(name: str, levels: Tensor) -> Tensor:
    """Return ``levels`` if it is a strictly increasing vector inside (0, 1), else raise."""
    if levels.dim() != 1 or levels.numel() == 0:
        raise BotorchTensorDimensionError(
            f"`{name}` must be a non-empty vector, got shape {tuple(levels.shape)}."
        )
    check_finite(name, levels)
    if ((levels <= 0) | (levels >= 1)).any() or (levels.diff() <= 0).any():
        raise InputDataError(f"`{name}` must increase strictly and lie in the open (0, 1).")
    return levels


def check_inputs(name: str, X: Tensor, num_dims: int | None = None) -> Tensor:
    """Return ``X`` if it is a finite ``n x d`` matrix (of width ``num_dims``), else raise."""
    if X.dim() != 2 or (num_dims is not None and X.shape[-1] != num_dims):
        width = "d" if num_dims is None else str(num_dims)
        raise BotorchTensorDimensionError(
            f"`{name}` must have shape n x {width}, got {tuple(X.shape)}."
        )
    return check_finite(name, X)


def check_width(X: Tensor, width: int) -> None:
    """Raise unless ``X`` has the shape ``... x width``; a width of 0 stands for any."""
    if X.dim() == 0 or (width and X.shape[-1] != width):
        raise BotorchTensorDimensionError(
            f"`X` must have shape ... x {width or 'd'}, got {tuple(X.shape)}."
        )
