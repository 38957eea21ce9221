"""Outcomes on a grid, such as counts or rounded readings, and the limits that suit them.

With steps ``h``, ``y <= 2`` and ``y <= 2 + h / 2`` are the same for the outcomes. They are not for
a model that knows no grid: by the former half of what is recorded as 2 violates the limit, and by
``y <= 2 + 0.9 h`` two fifths of what is recorded as ``2 + h`` are allowed.
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


def advice(sides: Sequence[Side], outcomes: Tensor, step: float) -> dict[tuple[str, str], str]:
    """What is wrong with limits that are not about halfway, and what to do.

    Keys are the side and what to do, which do not change with limits that follow a baseline.
    """
    ends, given = {1.0: "upper", -1.0: "lower"}, {}

    def shown(value: float, sign: str = "") -> str:
        """Digits to a hundredth of a step, which numbers far from 0 have as well."""
        return f"{round(value, 2 - math.floor(math.log10(step))):{sign}.15g}"

    limits = halfway_limits(sides, outcomes, step)
    for limit, sign in (side for side in sides if ends[side.sign] in limits):
        halfway = limits[ends[sign]]
        if sign * (halfway - limit) > 0.0:
            fault = (
                "a part of the outcomes that are allowed for violations, and certifies less than "
                "it could"
            )
        else:
            fault = (
                "a part of the outcomes that violate it for allowed ones, and certifies points "
                "that keep it less often than stated"
            )
        move = f"by {shown(halfway - limit, '+')}, to {shown(halfway)}"
        given[ends[sign], fault + shown(halfway)] = (
            f"With the {ends[sign]} limit {shown(limit)} it takes {fault}. Move the limit {move}, "
            "halfway between two outcomes: the same ones violate it. Where the limit is fixed, "
            f"move all outcomes, from the first one on, by {shown(limit - halfway, '+')} instead."
        )
    return given
