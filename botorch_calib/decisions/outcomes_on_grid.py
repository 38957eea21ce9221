"""Outcomes on a grid, such as counts or rounded readings, and the limits that suit them.

With steps ``h``, ``y <= 2`` and ``y <= 2 + h / 2`` are the same for the outcomes. They are not for
a model that knows no grid: by the former half of what is recorded as 2 violates the limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from botorch_calib.decisions.decision_records import Side

# A difference of outcomes is a number of steps if it is one up to this share of a step.
_ROUNDING = 1e-3
# With fewer different values than this, any two differences may look like steps.
_TELLING = 4
# Limits off the middle of a cell by less than this share of a step cost little.
_NEAR = 0.25


def step_of_grid(outcomes: Tensor) -> float | None:
    """The step of the grid on which all outcomes lie, or None if they show none.

    They show one if some are equal, and all differences are multiples of the smallest one.
    """
    values = outcomes.flatten().unique()
    num = len(values)
    if num < 2 or outcomes.numel() < (num + 1 if num >= _TELLING else 2 * num):
        return None
    gaps = values.diff()
    steps = gaps / gaps.min()
    on_grid = (steps - steps.round()).abs().max() < _ROUNDING
    return float(gaps.min()) if on_grid else None


def halfway_limits(sides: Sequence[Side], outcomes: Tensor, step: float) -> dict[str, float]:
    """Limits halfway between the last outcome allowed and the next, by the names of arguments.

    Left out are those that are about there.
    """
    found, origin = {}, float(outcomes.min())
    for limit, sign in sides:
        allowed = math.floor(sign * (limit - origin) / step + _ROUNDING)  # steps to the last one
        halfway = origin + sign * (allowed + 0.5) * step
        if abs(halfway - limit) > _NEAR * step:
            found["upper" if sign > 0.0 else "lower"] = halfway
    return found
