"""Functions of which a part of the box brings no value, for studies of what that costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Problem:
    """A function on the unit cube, in a part of which queries bring no value.

    Attributes:
        dim: Number of its variables.
        value: Its value at a point of length ``dim``.
        outside: The point's distance from the part without values, or what has its sign; negative
            within.
        best: The greatest value outside, rounded down.
    """

    dim: int
    value: Callable[[Tensor], float]
    outside: Callable[[Tensor], float]
    best: float


def distance(x: Tensor, *centre: float) -> float:
    """The distance of a point from another one."""
    return float((x - x.new_tensor(centre)).norm())


def hill(x: Tensor, width: float, *centre: float) -> float:
    """A bell of height 1."""
    return math.exp(-((distance(x, *centre) / width) ** 2))


#: A bowl whose top is in the middle of the part without values.
DISC = Problem(
    dim=2,
    value=lambda x: 1.0 - 4.0 * distance(x, 0.6, 0.6) ** 2,
    outside=lambda x: distance(x, 0.6, 0.6) - 0.2,
    best=0.84,
)
#: It rises towards the border.
SLOPE = Problem(
    dim=2,
    value=lambda x: float(x.sum()),
    outside=lambda x: (1.4 - float(x.sum())) / math.sqrt(2.0),
    best=1.4,
)
