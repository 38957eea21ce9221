"""Decisions as plain records, ready for JSON, and `DecisionAccount`: their outcomes and the budget.

`ChanceConstraint.decisions` says what a record holds. Outcomes that keep their limits together
share what may be violated, so each has a level of its own.
"""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from numbers import Real
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import (
    check_count,
    check_limit,
    check_list,
    check_positive,
    check_tensor,
    numbers_of,
)
from botorch_calib.decisions.budget import Account, Budget, Decision, check_level, together

# Traces in this process, which reveal a constraint that is made without the records of decisions:
# statements that models and calibrators have decided by, and the last points of decisions by each.
_DECIDED: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()
_RECENT: deque[tuple[Any, ...]] = deque(maxlen=100)

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
        beyond = (s.exceeded(q, s.limit + s.sign * 1e-6 * abs(s.limit)) for s, q in ends)
        if record["certified"] and any(beyond):
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


def _error(number: int, problem: str) -> InputDataError:
    return InputDataError(f"Record {number} of `records` {problem}.")


class DecisionAccount:
    """Records of decisions about points, and the account and the budget that follow from them.

    `ChanceConstraint` keeps them, and explains the arguments; of models they know nothing.
    ``least_excess`` is the ``least`` of `Account.of`.
    """

    def __init__(
        self,
        upper: float | None,
        lower: float | None,
        level: float,
        budget: float,
        records: Iterable[Mapping[str, Any]] | None,
        least_excess: float = -math.inf,
    ) -> None:
        self.upper = check_limit("upper", upper)
        self.lower = check_limit("lower", lower)
        self.level = check_level(level)
        if self.upper is None and self.lower is None:
            raise InputDataError("Give `upper`, `lower` or both: there is nothing to constrain.")
        if self.upper is not None and self.lower is not None and not self.lower < self.upper:
            raise InputDataError(
                f"`lower` must be less than `upper`, got {self.lower} and {self.upper}."
            )
        self._budget = Budget(self.level, check_positive("budget", budget, allow_inf=True))
        self._least_excess = least_excess
        self._records = checked_records([] if records is None else records, self._sides, self.level)
        # The constraints that hold together, which share a budget; the present one at its place.
        self._together: list[Any] = [self]
        self._place = 0
        # Accounts of the own outcomes and of all, once they are known, of copies as well.
        self._accounts: dict[bool, Account] = {}

    @property
    def decisions(self) -> list[Record]:
        """Records of all decisions, in their order: dictionaries that may be stored as JSON.

        Their entries are the ``point``, a list of numbers; the ``quantiles`` that decided, of the
        lower limit and of the upper one, those there are; the ``level`` at which the outcome is
        within them; whether the point was ``certified``; and its ``outcome``, None as long as that
        is out.
        """
        return copy.deepcopy(self._records)

    @property
    def num_decisions(self) -> int:
        """Number of decisions, certified or not."""
        return len(self._records)

    @property
    def num_observed(self) -> int:
        """Number of decisions whose outcome has come."""
        return sum(record["outcome"] is not None for record in self._records)

    @property
    def num_certified(self) -> int:
        """Number of decisions that were certified."""
        return self._account().num_certified

    @property
    def num_outstanding(self) -> int:
        """Number of certified points whose outcome is out."""
        return self._account(own=True).num_outstanding

    @property
    def num_violations(self) -> int:
        """Number of certified points whose outcome violated a limit."""
        return self._account(own=True).num_violations

    def violated(self, Y: Tensor) -> Tensor:
        """Whether outcomes ``... x 1``, none of them NaN, are outside their limits, ``...``."""
        if check_tensor("Y", Y).shape[-1:] != (1,) or Y.isnan().any():
            raise InputDataError(
                f"`Y` must hold outcomes ... x 1 without NaN, got {tuple(Y.shape)}: leave out "
                "those that are not known."
            )
        y = torch.tensor(numbers_of(Y.flatten()), dtype=torch.double)
        beyond = [side.exceeded(y, side.limit) for side in self._sides]
        return torch.stack(beyond).any(dim=0).to(Y.device).view(Y.shape[:-1])

    def violation_bound(self, num_certified: int) -> float:
        """Largest number of violations among the first ``num_certified`` certified points.

        Of `joint_chance_constraints` it is the number of points that violate any of the limits.
        """
        return self._budget.bound(check_count("num_certified", num_certified, least=0))

    @property
    def budget_left(self) -> float:
        """What is left of the budget, points that are out counting as violations."""
        return self._budget.left(*self._at_stake())

    def _at_stake(self) -> tuple[int, int]:
        """Numbers of certified points, and of violations there may be among them."""
        account = self._account()
        return account.num_certified, account.num_violations + account.num_outstanding

    def _account(self, own: bool = False) -> Account:
        """That of all constraints that hold together, or of the ``own`` outcomes alone."""
        if own not in self._accounts:
            members = [self] if own else self._together
            records, sides = [each._records for each in members], [each._sides for each in members]
            terms = self.level, self._budget.size, self._least_excess
            self._accounts[own] = account_of(records, sides, *terms)
        return self._accounts[own]

    def _forget_account(self) -> None:
        for each in self._together:
            each._accounts.clear()

    def _out_at(self, points: list[list[float]]) -> list[Record | None]:
        """For each point the first open record that no other has taken, or None.

        A record of just this point comes before one that differs by rounding.
        """
        out = [(self._whole(r["point"]), r) for r in self._records if r["outcome"] is None]
        found = []
        for point in map(self._whole, points):
            near = [i for i, (other, _) in enumerate(out) if _are_close(other, point)]
            first = min(near, key=lambda i: out[i][0] != point, default=None)
            found.append(None if first is None else out.pop(first)[1])
        return found

    def _whole(self, point: list[float]) -> list[float]:
        """A point with columns that may be left out."""
        return point

    @property
    def _sides(self) -> list[Side]:
        return sides_of(self.lower, self.upper)

    def __repr__(self) -> str:
        ends = {"lower": self.lower, "upper": self.upper}
        limits = "".join(f"{name}={end:g}, " for name, end in ends.items() if end is not None)
        return (
            f"{type(self).__name__}({limits}level={self.level:g}, "
            f"certified={self.num_certified} of {self.num_decisions}, "
            f"violations={self.num_violations})"
        )


def _are_close(point: list[float], other: list[float]) -> bool:
    """Whether points are equal, up to a relative 1e-9 of each element."""
    return len(point) == len(other) and all(map(math.isclose, point, other))


def leave_traces(
    parts: Iterable[Any], statement: tuple[Any, ...], points: Iterable[Sequence[float]] = ()
) -> None:
    """Note that models and calibrators have decided by a statement, about these points."""
    for part in parts:
        _DECIDED.setdefault(part, set()).add(statement)
    _RECENT.extend((*statement, *point) for point in points)


def have_decided(parts: Iterable[Any], statement: tuple[Any, ...], inputs: Tensor | None) -> bool:
    """Whether any of these has decided by a statement, or on data that end by such a decision.

    ``inputs``, ``... x n x d``, are those of the data, if they are known.
    """
    last = [] if inputs is None or not inputs.numel() else inputs[..., -1, :].tolist()
    decided = any(statement in _DECIDED.get(part, ()) for part in parts)
    return decided or (*statement, *last) in _RECENT
