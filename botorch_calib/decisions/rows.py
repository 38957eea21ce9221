"""A chance constraint's decisions as plain records, which may be stored as JSON.

`ChanceConstraint.decisions` says what a record holds. Outcomes that keep their limits together
share what may be violated, so each has a level of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple

from botorch.exceptions.errors import InputDataError

from botorch_calib._validation import check_list
from botorch_calib.decisions.budget import Account, Decision, together

Record = dict[str, Any]
#: The entries of a record.
KEYS = ("point", "quantiles", "level", "certified", "outcome")


class Side(NamedTuple):
    """One of the limits of an outcome."""

    limit: float
    sign: float  # 1 at an upper limit, -1 at a lower one

    def exceeded(self, y: Any, end: float) -> Any:
        """Whether an outcome, or each of a tensor, is beyond ``end``, a limit or a quantile."""
        return self.sign * y > self.sign * end


def sides_of(lower: float | None, upper: float | None) -> list[Side]:
    """The sides that limits have, the lower one first."""
    limits = ((lower, -1.0), (upper, 1.0))
    return [Side(limit, sign) for limit, sign in limits if limit is not None]


def decision_of(record: Mapping[str, Any], sides: Sequence[Side]) -> Decision:
    """What counts of a record under the limits of ``sides``."""
    y, certified = record["outcome"], record["certified"]
    if y is None:
        return Decision(certified, None, None)
    violated = any(side.exceeded(y, side.limit) for side in sides)
    beyond = (s.exceeded(y, q) for s, q in zip(sides, record["quantiles"], strict=True))
    # Rounding may put a limit beyond the quantile that was within it.
    return Decision(certified, violated, any(beyond) or (certified and violated))


def account_of(
    records: Iterable[Iterable[Record]],
    sides: Iterable[Sequence[Side]],
    level: float,
    size: float,
    least: float = -math.inf,
) -> Account:
    """The account of outcomes that keep their limits together: of each, its records and sides."""
    pairs = zip(records, sides, strict=True)
    each = [[decision_of(record, of) for record in own] for own, of in pairs]
    return Account.of(map(together, zip(*each, strict=True)), 1.0 - level, size, least)


def checked_records(
    records: Iterable[Mapping[str, Any]], sides: Sequence[Side], level: float, is_part: bool = False
) -> list[Record]:
    """Copies of records, in their order, that a constraint with these limits may have made.

    If it ``is_part`` of several that hold together with ``level``, its own levels are above that.

    Raises:
        InputDataError: If a record is malformed, or another constraint's.
    """
    checked = []
    for number, record in enumerate(check_list("records", records, "dictionaries")):
        if not isinstance(record, Mapping) or set(record) != set(KEYS):
            raise _error(number, f"must be a dictionary with the entries {', '.join(KEYS)}")
        point, quantiles, y = record["point"], record["quantiles"], record["outcome"]
        if not (isinstance(point, Iterable) and isinstance(quantiles, Iterable)):
            raise _error(number, "must hold its point and its quantiles as lists of numbers")
        point, quantiles = [*point], [*quantiles]
        numbers = [*point, *quantiles, record["level"], *([] if y is None else [y])]
        if not all(isinstance(value, Real) for value in numbers):
            raise _error(number, "must hold numbers, the outcome a number or None")
        if not all(map(math.isfinite, point)):
            raise _error(number, f"is about the point {point}, which is no finite one")
        if record["certified"] not in (True, False):
            raise _error(number, f"is certified or not, True or False, got {record['certified']!r}")
        if is_part and not level < record["level"] < 1.0:
            raise _error(number, f"is of the level {record['level']}, not of a part of {level}")
        if not is_part and not abs(record["level"] - level) <= 1e-12:
            raise _error(number, f"is of the level {record['level']}, not {level}")
        if len(quantiles) != len(sides):
            raise _error(number, f"has {len(quantiles)} quantiles for {len(sides)} limits")
        if y is not None and not math.isfinite(y):
            raise _error(number, f"has the outcome {y!r}: leave it None as long as it is out")
        ends = zip(sides, quantiles, strict=True)
        # In single precision a limit may be rounded to a quantile just beyond it.
        if record["certified"] and any(s.exceeded(q, _slightly(s)) for s, q in ends):
            raise _error(number, "certified its point by quantiles that are outside these limits")
        checked.append(
            {
                "point": [*map(float, point)],
                "quantiles": [*map(float, quantiles)],
                "level": float(record["level"]) if is_part else level,
                "certified": bool(record["certified"]),
                "outcome": None if y is None else float(y),
            }
        )
    return checked


def _slightly(side: Side) -> float:
    return side.limit + side.sign * 1e-6 * abs(side.limit)


def _error(number: int, problem: str) -> InputDataError:
    return InputDataError(f"Record {number} of `records` {problem}.")
