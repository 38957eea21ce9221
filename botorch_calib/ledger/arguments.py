"""Arguments of a ledger turned into plain numbers and bytes, or refused by name."""

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

# The bytes of a query are the same on every machine.
DOUBLE = np.dtype("<f8")


def as_number(name: str, value: Any, *, finite: bool = True) -> float:
    """The float that ``value`` is: a real number or a tensor or array of one element.

    Raises:
        BotorchTensorDimensionError: If it has more or fewer elements than one.
        InputDataError: If it is not a real number, is NaN, or infinite where ``finite``.
    """
    # Short, also of what is long or cannot show itself: this may be what an objective returns.
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


def as_trial_id(value: Any) -> int:
    """The integer that ``value`` is, else ``UnknownTrialError``."""
    try:
        return operator.index(value)
    except TypeError:
        raise UnknownTrialError(f"A trial's id is an integer, got {value!r}.") from None


def as_query(x: Any, dim: int) -> bytes:
    """The doubles of one query, a tensor or array-like of shape ``d`` or ``1 x d``.

    Raises:
        BotorchTensorDimensionError: If its shape is another one.
        InputDataError: If it holds NaN, infinite values or anything but real numbers.
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
    """A copy: torch warns of arrays that it must not write to."""
    try:
        array = np.asarray(x)
    except ValueError:  # lists of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise InputDataError(f"`x` must hold real numbers, got {x!r}.")
    return array.astype(np.float64)
