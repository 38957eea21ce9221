"""Checks of a ledger's arguments, which convert them to plain numbers and bytes."""

from __future__ import annotations

import json
import math
import reprlib
from collections.abc import Iterable, Mapping
from functools import partial
from numbers import Real
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib._validation import as_written, check_finite

# Little-endian, so that the bytes of a query are the same on every machine.
DOUBLE = np.dtype("<f8")


def as_number(name: str, value: Any, *, finite: bool = True) -> float:
    """Convert a real number, or a tensor or array of one element, to a float that is not NaN."""
    # ``value`` may be anything that an objective returns: ``reprlib`` keeps the text short, and
    # also works if the value's own ``__repr__`` fails.
    shown = reprlib.repr(value)
    if np.ma.is_masked(value):
        raise InputDataError(f"`{name}` must be a real number, got a masked one.")
    is_array = isinstance(value, (Tensor, np.ndarray, np.generic))
    is_single = is_array and str(value.dtype).endswith("float32")
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
    return as_written(number) if is_single else number


def as_variance(name: str, value: Any) -> float | None:
    """Convert a variance to a float, or return None."""
    if value is None:
        return None
    variance = as_number(name, value) + 0.0  # no -0.0
    if variance < 0.0:
        raise InputDataError(f"`{name}` is a variance: it must be at least 0, got {variance!r}.")
    return variance


def as_outcomes(outcomes: Iterable[Any] | None) -> tuple[float | None, ...] | None:
    """Convert outcomes of decisions to floats, None for one that is out, or return None."""
    if outcomes is None:
        return None
    if isinstance(outcomes, str) or not isinstance(outcomes, Iterable):
        raise InputDataError(
            f"`outcomes` must be a list of one for each decision, got {reprlib.repr(outcomes)}."
        )
    return tuple(None if y is None else as_number("outcomes", y) for y in outcomes)


def as_context(context: Any) -> tuple[float, ...] | None:
    """Convert a context to floats, or return None."""
    if context is None:
        return None
    return tuple(as_array("context", context, (None,), (1, None)).ravel().tolist())


def as_decisions(decisions: Any, query: bytes) -> str:
    """Convert the record of a decision about a query, or several, to JSON."""
    known = [] if decisions is None else decisions
    keys = itemgetter("point", "quantiles", "level", "certified")
    try:
        several = [known] if isinstance(known, Mapping) else [*known]
        points = [[*map(float, point)] for point, *_ in map(keys, several)]
        text = json.dumps([dict(record) for record in several])
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise InputDataError(
            "`decisions` must be records such as `ChanceConstraint.decisions` holds, got "
            f"{reprlib.repr(decisions)}."
        ) from error
    x = np.frombuffer(query, dtype=DOUBLE).tolist()
    for point in points:
        # Up to single precision, and in order: contexts, or a task's column, may be left out.
        columns, is_close = iter(x), partial(math.isclose, rel_tol=1e-6, abs_tol=1e-12)
        if not point or not all(any(is_close(v, p) for v in columns) for p in point):
            raise InputDataError(
                f"`decisions` are about the point {point}, and the query is {x}: give the record "
                "of the decision about this query."
            )
    return text


def as_time(time: Any) -> float | None:
    """Convert a time to a float, or return None."""
    # Adding 0 turns -0.0, which a file would not preserve, into 0.0.
    return None if time is None else as_number("time", time) + 0.0


def as_query(x: Any, dim: int, name: str = "x") -> bytes:
    """Convert a query, of shape ``d`` or ``1 x d``, to little-endian doubles."""
    return as_array(name, x, (dim,), (1, dim)).tobytes()


def as_array(name: str, values: Any, *shapes: tuple[int | None, ...]) -> NDArray[np.float64]:
    """Convert a tensor or array-like of one of these shapes, with None for any length."""
    if not isinstance(values, Tensor):
        try:
            array = np.asarray(values)
        except ValueError:  # lists of different lengths
            array = np.empty(0, dtype=object)
        if array.dtype.kind not in "biuf":
            raise InputDataError(
                f"`{name}` must hold real numbers, in rows of equal length, got "
                f"{reprlib.repr(values)}."
            )
        # A writable copy, as torch warns about arrays that are read-only.
        values = torch.from_numpy(array.astype(np.float64))
    if values.is_complex():
        raise InputDataError(f"`{name}` must hold real numbers, got complex ones.")
    actual = tuple(values.shape)
    lengths = [shape for shape in shapes if len(shape) == len(actual)]
    if not any(all(k in (None, n) for k, n in zip(each, actual, strict=True)) for each in lengths):
        texts = (" x ".join("n" if k is None else str(k) for k in shape) for shape in shapes)
        raise BotorchTensorDimensionError(
            f"`{name}` must have shape {' or '.join(texts)}, got {actual}."
        )
    doubles = values.detach().to(device="cpu", dtype=torch.double)
    return check_finite(name, doubles).numpy().astype(DOUBLE)
