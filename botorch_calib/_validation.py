"""Checks of arguments, which raise errors of ``botorch.exceptions``.

The text of an error refers to the argument by ``name``. Most checks return the valid argument.
Public entry points validate before they change anything. Checks of models are in
``models/requirements.py``.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NoReturn, SupportsIndex, TypeVar

import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.model import Model
from numpy.typing import NDArray
from torch import Size, Tensor

T = TypeVar("T")


def _refuse(name: str, wanted: str, value: object) -> NoReturn:
    # ``reprlib`` limits the length of the text, and works even if the value's ``__repr__`` fails.
    shown = value.__name__ if isinstance(value, type) else reprlib.repr(value)
    raise InputDataError(f"`{name}` must be {wanted}, got {shown}.") from None


# ---------------------------------------------------------------- single values


def _number(value: object, allow_inf: bool = False) -> float:
    """Return a number, or the only element of a tensor or array, as a float; else return NaN.

    Booleans give NaN, and so does infinity unless ``allow_inf``. A number in single precision is
    converted by `as_written`.
    """
    is_single = False
    if isinstance(value, Tensor | np.ndarray | np.generic):
        is_single = str(value.dtype).endswith("float32")
    if isinstance(value, Tensor | np.ndarray) and not np.ma.is_masked(value):
        value = value.item() if math.prod(value.shape) == 1 else value
    if isinstance(value, bool) or not isinstance(value, Real):
        return math.nan
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if math.isinf(number) and not allow_inf:
        return math.nan
    return as_written(number) if is_single else number


def check_number(name: str, value: object, *, allow_inf: bool = False) -> float:
    """Return ``value`` as a float; raise if it is not a number, and finite unless ``allow_inf``."""
    if math.isnan(number := _number(value, allow_inf)):
        _refuse(name, "a number" if allow_inf else "a finite number", value)
    return number


def check_open_unit(name: str, value: object) -> float:
    """Return ``value`` as a float; raise if it is not a number strictly between 0 and 1."""
    if not 0.0 < (number := _number(value)) < 1.0:
        _refuse(name, "a number in the open interval (0, 1)", value)
    return number


def check_positive(name: str, value: object, *, allow_inf: bool = False) -> float:
    """Return ``value`` as a float; raise if it is not positive, and finite unless ``allow_inf``."""
    if not (number := _number(value, allow_inf)) > 0.0:
        _refuse(name, "a positive number", value)
    return number


def check_nonnegative(name: str, value: object, *, allow_inf: bool = False) -> float:
    """Return ``value`` as a float; raise if it is below 0, or infinite without ``allow_inf``."""
    if not (number := _number(value, allow_inf)) >= 0.0:
        _refuse(name, f"a {'' if allow_inf else 'finite '}number of at least 0", value)
    return number + 0.0  # turns -0.0 into 0.0


def check_variance(name: str, value: object) -> float:
    """Return a noise variance as a float; NaN, which stands for an unknown one, is allowed."""
    number = value
    if isinstance(value, Tensor | np.ndarray) and math.prod(value.shape) == 1:
        number = value.item()
    is_unknown = isinstance(number, Real) and math.isnan(number)
    return math.nan if is_unknown else check_nonnegative(name, value)


def check_limit(name: str, limit: object) -> float | None:
    """Return None or a finite number, as a float; raise if ``limit`` is anything else."""
    if limit is None:
        return None
    if math.isnan(number := _number(limit)):
        _refuse(name, "a finite number or None", limit)
    return number


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an ``int``; raise if it is not an integer (no boolean) >= ``least``."""
    try:
        count = operator.index(value)
    except TypeError:
        count = least - 1
    # `operator.index` accepts a boolean, which is never a meaningful count.
    if count < least or isinstance(value, bool):
        _refuse(name, f"an integer of at least {least}", value)
    return count


def check_flag(name: str, value: object) -> bool:
    """Return a Python or NumPy boolean as a ``bool``; raise for others, such as "False"."""
    if not isinstance(value, (bool, np.bool_)):
        _refuse(name, "True or False", value)
    return bool(value)


def check_one_of(name: str, value: T, known: Collection[T]) -> T:
    """Return ``value``; raise if it is not one of the ``known`` values."""
    if value not in known:
        _refuse(name, f"one of {', '.join(map(repr, known))}", value)
    return value


def as_written(number: float) -> float:
    """Return the shortest decimal number that equals ``number`` in single precision.

    0.8 in single precision is 0.80000001 in double precision, which would exceed a limit of 0.8.
    """
    return float(str(np.float32(number)))


# ---------------------------------------------------------------- lists and objects


def check_list(name: str, values: Iterable[T], of: str) -> list[T]:
    """Return ``values`` as a list; raise unless they are iterable. Errors call them ``of``."""
    try:
        return [*values]
    except TypeError:
        _refuse(name, f"a list of {of}", type(values))


def check_columns(name: str, columns: Iterable[SupportsIndex]) -> tuple[int, ...]:
    """Return column numbers as a tuple of ``int``; raise unless all are integers, not booleans."""
    try:
        if any(isinstance(column, bool) for column in columns):
            raise TypeError
        return tuple(operator.index(column) for column in columns)
    except TypeError:
        _refuse(name, "a sequence of integers, one for each column", columns)


def check_fixed_features(fixed: Mapping[int, float] | None, num: int) -> dict[int, float]:
    """Return fixed features as a dictionary of values by column, which is empty for None.

    A negative column counts from the end of the ``num`` columns, and becomes nonnegative.
    """
    if not isinstance(fixed, Mapping | None):
        _refuse("fixed_features", "a dictionary from columns to values", type(fixed))
    checked: dict[int, float] = {}
    for column, value in (fixed or {}).items():
        if not isinstance(column, Integral) or not -num <= int(column) < num:
            raise InputDataError(f"`fixed_features` names column {column!r} of {num} columns.")
        if int(column) % num in checked:
            raise InputDataError(f"`fixed_features` names column {column} twice.")
        checked[int(column) % num] = check_number(f"fixed_features[{column}]", value)
    return checked


def check_instance(name: str, value: T, kind: type, example: str = "") -> T:
    """Return ``value``; raise if it is not a ``kind``. Errors suggest the ``example``, if given."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        such = f" such as {example}" if example else ""
        _refuse(name, f"{article} {kind.__name__}{such}", type(value))
    return value


def check_callable(name: str, value: T, kind: str = "callable") -> T:
    """Return ``value``; raise if it is not callable or None. Errors call a valid value ``kind``."""
    if value is not None and not callable(value):
        _refuse(name, kind, value)
    return value


def check_model(model: object) -> Model:
    if not isinstance(model, Model):
        raise UnsupportedError(
            f"`model` must be a BoTorch model such as SingleTaskGP, got {type(model).__name__}."
        )
    return model


def check_acquisition(acq_function: object) -> None:
    if not isinstance(acq_function, AcquisitionFunction):
        raise UnsupportedError(
            f"`acq_function` must be an acquisition function, got {type(acq_function).__name__}."
        )


# ---------------------------------------------------------------- tensors


def check_tensor(name: str, value: object) -> Tensor:
    if not isinstance(value, Tensor):
        # Torch would index a pandas object by its labels, so suggest `to_numpy` first. From pandas
        # 3 on the result is read-only, so suggest a copy: `torch.as_tensor` would warn.
        values = f"({name}.to_numpy())" if hasattr(value, "to_numpy") else ""
        raise InputDataError(
            f"`{name}` must be a tensor, got {type(value).__name__}: convert it by "
            f"`torch.tensor{values}`, in the precision of the model."
        )
    return value


def check_finite(name: str, value: Tensor) -> Tensor:
    """Validate that a tensor contains no NaN or infinite values, and return it."""
    if not torch.isfinite(check_tensor(name, value)).all():
        raise InputDataError(f"`{name}` contains NaN or infinite values.")
    return value


def in_double(name: str, value: object, device: torch.device | None = None) -> Tensor:
    """Return numbers, which may be NaN, as a tensor in double precision, on ``device`` if given."""
    if isinstance(value, Tensor):
        return value.to(device, torch.double)
    try:
        if hasattr(value, "__array__"):  # torch reads pandas labels, and rejects some NumPy layouts
            value = np.asarray(value).tolist()
        return torch.tensor(value, dtype=torch.double, device=device)
    except (TypeError, ValueError, RuntimeError):
        _refuse(name, "a number or a tensor", value)


def check_numbers(name: str, value: object) -> Tensor:
    """Return a tensor unchanged, other numbers as float64; raise if empty, complex or NaN."""
    numbers = value if isinstance(value, Tensor) else in_double(name, value)
    if numbers.is_complex() or not numbers.numel() or numbers.isnan().any():
        raise InputDataError(f"`{name}` must hold real numbers, none of them NaN, got {value}.")
    return numbers


def numbers_of(values: Tensor) -> list[float]:
    """Return the elements of a vector as floats; `as_written` converts single-precision numbers."""
    numbers = map(float, values.tolist())
    return [*map(as_written, numbers)] if values.dtype == torch.float else [*numbers]


def check_array(
    name: str, values: object, *shapes: tuple[int | None, ...], allow_nan: bool = False
) -> NDArray[np.float64]:
    """Return a tensor or array-like as a new array in double precision.

    Raise unless it has one of the ``shapes``, in which None matches any length, and all its
    numbers are real and finite, or NaN if ``allow_nan``.
    """
    if isinstance(values, Tensor):  # bfloat16 has no counterpart in NumPy
        values = values.detach().cpu().to(torch.cdouble if values.is_complex() else torch.double)
    try:
        array = np.asarray(values)
    except ValueError:  # lists of different lengths
        array = np.empty(0, dtype=object)
    if array.dtype.kind not in "biuf":
        raise InputDataError(
            f"`{name}` must hold real numbers, in rows of equal length, got {reprlib.repr(values)}."
        )

    def fits(shape: tuple[int | None, ...]) -> bool:
        pairs = zip(shape, array.shape, strict=False)
        return len(shape) == array.ndim and all(wanted in (None, n) for wanted, n in pairs)

    if not any(map(fits, shapes)):
        texts = (" x ".join("n" if k is None else str(k) for k in shape) for shape in shapes)
        raise BotorchTensorDimensionError(
            f"`{name}` must have shape {' or '.join(texts)}, got {array.shape}."
        )
    if not (np.isfinite(array) | (allow_nan & np.isnan(array))).all():
        raise InputDataError(f"`{name}` contains {'' if allow_nan else 'NaN or '}infinite values.")
    return array.astype(np.float64)


def check_bounds(bounds: Tensor) -> Tensor:
    """Validate and return finite bounds ``2 x d``: first the lower, then the upper bounds."""
    check_tensor("bounds", bounds)
    if bounds.dim() != 2 or len(bounds) != 2:
        raise BotorchTensorDimensionError(
            f"`bounds` must have shape 2 x d, got {tuple(bounds.shape)}."
        )
    if not bounds.is_floating_point():
        raise InputDataError(f"`bounds` must be floating-point numbers, got {bounds.dtype}.")
    if (check_finite("bounds", bounds)[0] > bounds[1]).any():
        raise InputDataError("`bounds` must have the lower bounds first, then the upper bounds.")
    return bounds


def check_variances(name: str, value: Tensor) -> Tensor:
    """Validate that all elements of a tensor are finite and at least 0, and return the tensor."""
    if check_tensor(name, value).is_complex():
        raise InputDataError(f"`{name}` must hold real numbers, got {value.dtype}.")
    if not (check_finite(name, value) >= 0).all():
        raise InputDataError(f"`{name}` must hold variances of at least 0.")
    return value


def check_precision(name: str, values: Tensor, dtype: torch.dtype) -> None:
    """Raise ``InputDataError`` unless ``values`` have ``dtype``, the precision of the model."""
    if values.dtype != dtype:
        is_real = values.is_floating_point()
        otherwise = f", or fit the model to data in {values.dtype}" if is_real else ""
        raise InputDataError(
            f"`{name}` must have the precision of the model, {dtype}, got {values.dtype}: pass "
            f"`{name}.to({dtype})`{otherwise}."
        )


def check_unit_interval(name: str, value: Tensor) -> Tensor:
    """Validate that all elements of a tensor lie in [0, 1], and return the tensor."""
    check_finite(name, value)
    if ((value < 0) | (value > 1)).any():
        raise InputDataError(f"`{name}` must lie in [0, 1].")
    return value


def check_levels(name: str, levels: Tensor) -> Tensor:
    """Validate a non-empty, strictly increasing vector inside (0, 1), and return it."""
    if check_tensor(name, levels).dim() != 1 or levels.numel() == 0:
        raise BotorchTensorDimensionError(
            f"`{name}` must be a non-empty vector, got shape {tuple(levels.shape)}."
        )
    check_finite(name, levels)
    if ((levels <= 0) | (levels >= 1)).any() or (levels.diff() <= 0).any():
        raise InputDataError(f"`{name}` must increase strictly and lie in the open (0, 1).")
    return levels


def check_inputs(name: str, X: Tensor, num_dims: int | None = None) -> Tensor:
    """Validate a finite ``n x d`` matrix, where ``d`` is ``num_dims`` if given, and return it."""
    check_tensor(name, X)
    if X.dim() != 2 or (num_dims is not None and X.shape[-1] != num_dims):
        width = "d" if num_dims is None else str(num_dims)
        raise BotorchTensorDimensionError(
            f"`{name}` must have shape n x {width}, got {tuple(X.shape)}."
        )
    return check_finite(name, X)


def check_pairs(X: Tensor, Y: Tensor, num_dims: int | None = None) -> None:
    """Raise unless ``X``, ``n x d``, and ``Y``, ``n x 1``, are finite; ``num_dims`` fixes ``d``."""
    check_inputs("X", X, num_dims)
    if check_tensor("Y", Y).shape != (len(X), 1):
        raise BotorchTensorDimensionError(
            f"`Y` must have shape {len(X)} x 1, one row for each of `X`, got {tuple(Y.shape)}."
        )
    check_finite("Y", Y)


def check_width(X: Tensor, width: int) -> None:
    """Raise unless ``X`` has the shape ``... x width``; a ``width`` of 0 allows any width."""
    if check_tensor("X", X).dim() == 0 or (width and X.shape[-1] != width):
        raise BotorchTensorDimensionError(
            f"`X` must have shape ... x {width or 'd'}, got {tuple(X.shape)}."
        )


def broadcasts_to(shape: Sequence[int], target: Size) -> bool:
    """Return whether a tensor with shape ``shape`` can be expanded to the shape ``target``."""
    missing = len(target) - len(shape)
    pairs = zip(shape, target[missing:], strict=False)
    return missing >= 0 and all(own in (1, size) for own, size in pairs)
