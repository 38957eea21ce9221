"""Decisions as plain rows, which JSON can store, and `DecisionAccount`, which counts violations.

A row is one decision about one point, with its outcomes. It is self-contained:

    {"point": [0.2, 0.7], "level": 0.9, "certified": True, "limits": {"cost": [None, 3.0]},
     "quantiles": {"cost": [None, 2.71]}, "outcomes": {"cost": None}}

`ChanceConstraint.decide` returns rows, a client or a ledger stores them, and a constraint takes
them back as ``rows`` once the outcomes are entered. A row is judged by the limits it holds, even if
the constraint's limits have changed. `DecisionAccount.decisions` explains the entries.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from numbers import Real
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar
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
from botorch_calib.decisions.budget import Account, Budget, Decision, check_level
from botorch_calib.exceptions import warn
from botorch_calib.models.known_data import KnownData

_LOCK = threading.RLock()
# A pending decision is overdue once this many later decisions have all outcomes.
_OVERTAKEN = 20
# Registry of the decisions of this process, to detect a new constraint that lacks earlier rows. A
# statement consists of limits and a level. `_DECIDED` maps models and calibrators to the statements
# of their decisions. `_RECENT` holds the latest decided points with their statements, each with the
# latest `_NUM_LATEST` observations of each deciding model, by outcome.
_DECIDED: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()
_RECENT: deque[tuple[tuple[Any, ...], dict[str, Any]]] = deque(maxlen=100)
_NUM_LATEST = 20

P = ParamSpec("P")
R = TypeVar("R")
Row = dict[str, Any]
#: Training inputs ``n x d`` and outcomes ``n x 1`` by outcome name.
Data = Mapping[str, tuple[Tensor, Tensor]]
#: Lower and upper limit of each outcome, by name; None for no limit.
Limits = Mapping[str, Sequence[float | None]]
#: The entries that each row must have. Clients may add others, which constraints ignore.
KEYS = ("point", "level", "certified", "limits", "quantiles", "outcomes")
SIGNS = (-1.0, 1.0)  # signs of a lower and an upper limit


def decision_of(row: Mapping[str, Any]) -> Decision:
    """Return a row's entry in the account: whether it is certified, a violation and a miss."""
    came = row["outcomes"], row.get("beyond", {})
    violated, missed = (is_outside(row[key], *came) for key in ("limits", "quantiles"))
    # After rounding, a stored quantile may lie beyond the limit, but a violation is always a miss.
    return Decision(row["certified"], violated, (row["certified"] and violated) or missed)


def is_outside(
    limits: Limits, outcomes: Mapping[str, float | None], beyond: Mapping[str, int]
) -> bool | None:
    """Return whether any outcome is outside its limits; None if this is not known yet.

    An outcome that is missing or None is unknown. An outcome in ``beyond`` is known only to be
    above (1) or below (-1) its value in ``outcomes``.
    """
    flags: list[bool | None] = []
    for name, pair in limits.items():
        ends = [(sign, end) for sign, end in zip(SIGNS, pair, strict=True) if end is not None]
        flags += [_is_beyond(outcomes.get(name), beyond.get(name, 0), *end) for end in ends]
    return True if True in flags else None if None in flags else False


def _is_beyond(y: float | None, side: int, sign: float, end: float) -> bool | None:
    """Return whether an outcome is beyond ``end``; None if this is not known.

    Beyond means above if ``sign`` is 1, and below if ``sign`` is -1. The outcome equals ``y`` if
    ``side`` is 0, is above ``y`` if ``side`` is 1, and is below ``y`` if ``side`` is -1. A ``y`` of
    None is unknown.
    """
    if y is None:
        return None
    if side == sign:
        return True if sign * y >= sign * end else None
    is_beyond = sign * y > sign * end
    return None if side and is_beyond else is_beyond


def own_rows(
    rows: Iterable[Mapping[str, Any]], limits: Limits, level: float, skip_malformed: bool
) -> list[Row]:
    """Return copies of the ``rows`` decided at ``level`` that limit the same sides as ``limits``.

    The values of the limits may differ. A malformed row raises an error or, with
    ``skip_malformed``, is left out. A warning states how many rows are left out.
    """
    given, own = check_list("rows", rows, "dictionaries"), []
    for number, each in enumerate(given):
        try:
            row = _checked(each, f"rows[{number}]")
        except InputDataError:
            if not skip_malformed:
                raise
            continue
        if _sides(row["limits"]) == _sides(limits) and abs(row["level"] - level) <= 1e-12:
            own.append(row)
    if strangers := len(given) - len(own):
        warn(
            f"{strangers} of {len(given)} decisions were not recorded under limits on these sides "
            f"at the level {level:g}. They are left out: their violations do not count."
        )
    return own


def _sides(limits: Limits) -> dict[str, list[bool]]:
    return {name: [end is not None for end in pair] for name, pair in limits.items()}


def _checked(row: object, name: str) -> Row:
    """Return a copy of a row's entries, or raise if they are malformed; errors call it ``name``."""
    if not isinstance(row, Mapping) or not set(KEYS) <= row.keys():
        raise InputDataError(f"`{name}` must be a dictionary with the entries {', '.join(KEYS)}.")

    def check(is_right: bool, key: str, what: str) -> None:
        if not is_right:
            raise InputDataError(f"`{name}[{key!r}]` must be {what}, got {row[key]!r}.")

    def by_outcome(key: str, what: str, is_right: Callable[[Any], bool]) -> dict[str, Any]:
        values = row[key]
        right = isinstance(values, Mapping) and all(map(is_right, values.values()))
        check(right and bool(values) and values.keys() == row["limits"].keys(), key, what)
        return dict(values)

    point: list[Any] = [*row["point"]] if isinstance(row["point"], Iterable) else [None]
    check(all(map(_is_number, point)), "point", "a list of finite numbers")
    check(_is_number(row["level"]) and 0.0 < row["level"] < 1.0, "level", "a number in (0, 1)")
    check(row["certified"] in (True, False), "certified", "True or False")
    pairs = "pairs of a number or None, by the outcomes' names, with a number on each limited side"
    limits, quantiles = (by_outcome(key, pairs, _is_pair) for key in ("limits", "quantiles"))
    check(_sides(limits) == _sides(quantiles), "quantiles", pairs)
    numbers = "a finite number for each outcome, or None while it is pending"
    outcomes = by_outcome("outcomes", numbers, lambda y: y is None or _is_number(y))
    if "beyond" in row:
        sided = row["beyond"]
        right = isinstance(sided, Mapping) and all(side in (1, -1) for side in sided.values())
        right = right and all(outcomes.get(key) is not None for key in sided)
        check(right, "beyond", "1 or -1 for some of the outcomes that have arrived, by name")
    for key, sides in limits.items():
        ends = zip(SIGNS, sides, quantiles[key], strict=True)
        # After rounding to single precision, a quantile may lie just beyond the limit.
        beyond = (s * (q - end) > 1e-6 * abs(end) for s, end, q in ends if end is not None)
        within = "within the limits, since the point is certified"
        check(not (row["certified"] and any(beyond)), "quantiles", within)
    checked = {
        "point": [*map(float, point)],
        "level": float(row["level"]),
        "certified": bool(row["certified"]),
        "limits": {key: _floats(pair) for key, pair in limits.items()},
        "quantiles": {key: _floats(pair) for key, pair in quantiles.items()},
        "outcomes": dict(zip(outcomes, _floats(outcomes.values()), strict=True)),
    }
    if row.get("beyond"):
        checked["beyond"] = {key: int(side) for key, side in row["beyond"].items()}
    return checked


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and math.isfinite(value)


def _is_pair(pair: object) -> bool:
    if not isinstance(pair, Sequence) or len(pair) != 2:
        return False
    return [*pair] != [None, None] and all(end is None or _is_number(end) for end in pair)


def _floats(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else float(value) for value in values]


class Side(NamedTuple):
    """One of the limits of an outcome."""

    name: str  # name of the outcome
    sign: float  # 1 at an upper limit, -1 at a lower limit
    limit: float


def in_turn(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Decorate a method so that one thread at a time runs it, as copies of an object share rows."""

    @functools.wraps(method)
    def locked(self: Any, *args: P.args, **kwargs: P.kwargs) -> R:
        with _LOCK:
            return method(self, *args, **kwargs)

    return locked


class DecisionAccount:
    """Rows of decisions about points, with their account and budget.

    This is the part of `ChanceConstraint` that needs no model, and `ChanceConstraint` explains the
    arguments. Further, ``least_excess`` is the argument ``least`` of `Account.of`. With
    ``skip_malformed``, malformed rows are left out with a warning instead of an error.
    """

    #: What users should do about pending decisions, as a part of a sentence in warnings. Clients
    #: override it with the names of their own calls.
    remedy = (
        "`observe` them at the points in `decisions`, even if a setting was read back with another "
        "value, and `withdraw` points that were never run"
    )

    def __init__(
        self,
        limits: Limits,
        level: float,
        budget: float,
        rows: Iterable[Mapping[str, Any]] = (),
        least_excess: float = -math.inf,
        skip_malformed: bool = False,
    ) -> None:
        self.limits = {name: _checked_limits(pair) for name, pair in limits.items()}
        #: All limits, outcome by outcome, lower before upper.
        self._sides = [
            Side(name, sign, limit)
            for name, pair in self.limits.items()
            for sign, limit in zip(SIGNS, pair, strict=True)
            if limit is not None
        ]
        self.level = check_level(level)
        self.budget = Budget(self.level, check_positive("budget", budget, allow_inf=True))
        self._least_excess = least_excess
        self._rows = own_rows(rows, self.limits, self.level, skip_malformed)
        # Holds the `account` once it is computed. Copies share the list, so they clear it together.
        self._accounts: list[Account] = []

    @property
    @in_turn
    def decisions(self) -> list[Row]:
        """Copies of the rows of all decisions, in order, without withdrawn decisions.

        A row holds the ``point`` (a list of numbers), the ``level``, and whether the point was
        ``certified``. The other entries are dictionaries by outcome name. ``limits`` holds pairs
        ``[lower, upper]``, with None for no limit. ``quantiles`` holds the deciding quantiles in
        the same form. ``outcomes`` holds numbers, or None for pending outcomes. If an outcome is
        only known to be above or below a bound, ``outcomes`` holds the bound, and a further entry
        ``beyond`` holds 1 or -1. Rows may be stored as JSON.
        """
        return copy.deepcopy(self._rows)

    @property
    def num_decisions(self) -> int:
        """Number of decisions, certified or not, without withdrawn decisions."""
        return len(self._rows)

    @property
    def num_observed(self) -> int:
        """Number of decisions, certified or not, whose outcomes have all arrived."""
        return sum(None not in row["outcomes"].values() for row in self._rows)

    @property
    def num_certified(self) -> int:
        """Number of decisions that were certified."""
        return self.account.num_certified

    @property
    def num_outstanding(self) -> int:
        """Number of certified points whose unknown outcomes may still violate a limit."""
        return self.account.num_outstanding

    @property
    def num_violations(self) -> int:
        """Number of certified points that violated a limit."""
        return self.account.num_violations

    @property
    @in_turn
    def account(self) -> Account:
        """The account of all decisions, each judged by the limits in its row."""
        if not self._accounts:
            decisions, share = map(decision_of, self._rows), 1.0 - self.level
            terms = share, self.budget.size, self._least_excess
            self._accounts.append(Account.of(decisions, *terms))
        return self._accounts[0]

    def violated(self, Y: Tensor) -> Tensor:
        """Return, for each row of outcomes, whether any outcome is outside its limits.

        ``Y`` is ``... x m``, in the order of the limits and without NaN. The result, a tensor of
        booleans, has the shape of ``Y`` without the last dimension.
        """
        num = len(self.limits)
        if check_tensor("Y", Y).shape[-1:] != (num,) or Y.isnan().any():
            raise InputDataError(
                f"`Y` must hold outcomes ... x {num} without NaN, got {tuple(Y.shape)}: leave out "
                "unknown outcomes."
            )
        y = torch.tensor(numbers_of(Y.flatten()), dtype=torch.double).view(Y.shape)
        columns = dict(zip(self.limits, y.unbind(dim=-1), strict=True))
        beyond = [side.sign * columns[side.name] > side.sign * side.limit for side in self._sides]
        return torch.stack(beyond).any(dim=0).to(Y.device)

    def violation_bound(self, num_certified: int) -> float:
        """Return a bound on the violations among the first ``num_certified`` certified points.

        The bound is ``(1 - level) num_certified + budget + level``, at most ``num_certified``. A
        point that violates the limits of several outcomes counts once.
        """
        return self.budget.bound(check_count("num_certified", num_certified, least=0))

    @property
    def budget_left(self) -> float:
        """The remaining budget if every pending point turns out to be a violation."""
        return self.budget.left(*self._at_stake())

    def summary(self) -> str:
        """A summary of the decisions and the budget, in sentences."""
        T, V, out, *_ = self.account
        bound = f" At most {self.budget.bound(T):g} may." if T else ""
        return (
            f"At a level of {self.level:g}, {T} of {self.num_decisions} decisions were certified: "
            f"{V} of these violated a limit, and {out} are pending.{bound} The remaining budget is "
            f"{self.budget_left:g}. {self.note_of_outstanding()}".rstrip()
        )

    def note_of_outstanding(self) -> str:
        """Advice if pending decisions use up most or all of the budget; else an empty string."""
        T, V, num, *_ = self.account
        left, share, since = self.budget_left, "what was left", ""
        if not left <= 0.0 < self.budget.left(T - num, V):
            is_out = [None in row["outcomes"].values() for row in self._rows]
            later = [*accumulate(not each for each in reversed(is_out))][::-1]
            old = [row for row, n in zip(self._rows, later, strict=True) if n >= _OVERTAKEN]
            num = sum(row["certified"] and decision_of(row).violated is None for row in old)
            share, since = "most", f", each overtaken by {_OVERTAKEN} later ones"
            if num <= max(self.budget.size / 2, left):
                return ""
        return (
            f"The outcomes of {num} certified points are pending{since}. Until they arrive they "
            f"count as violations, and take {share} of the budget: {self.remedy}."
        )

    def _at_stake(self) -> tuple[int, int]:
        """Return the number of certified points, and the most violations possible among them."""
        account = self.account
        return account.num_certified, account.num_violations + account.num_outstanding

    def __repr__(self) -> str:
        several = len(self.limits) > 1
        limits = "".join(
            f"{f'{name} ' * several}{'upper' if sign > 0.0 else 'lower'}={limit:g}, "
            for name, sign, limit in self._sides
        )
        return (
            f"{type(self).__name__}({limits}level={self.level:g}, "
            f"certified={self.num_certified} of {self.num_decisions}, "
            f"violations={self.num_violations})"
        )


def _checked_limits(pair: object) -> tuple[float | None, float | None]:
    """Return the lower and the upper limit of an outcome; raise if they are malformed."""
    if not isinstance(pair, Sequence) or len(pair) != 2:
        raise InputDataError(f"`limits` must hold a pair `(lower, upper)` for each, got {pair!r}.")
    lower, upper = check_limit("lower", pair[0]), check_limit("upper", pair[1])
    if lower is None and upper is None:
        raise InputDataError("Give `upper`, `lower` or both: the outcome has no limit.")
    if lower is not None and upper is not None and not lower < upper:
        raise InputDataError(f"`lower` must be less than `upper`, got {lower} and {upper}.")
    return lower, upper


def leave_traces(
    parts: Iterable[Any],
    statement: tuple[Any, ...],
    points: Iterable[Sequence[float]],
    data: Data,
) -> None:
    """Register decisions of models and calibrators, ``parts``, about points: see `have_decided`.

    ``data`` are the training data of the deciding models.
    """
    for part in parts:
        _DECIDED.setdefault(part, set()).add(statement)
    latest = {name: (X[-_NUM_LATEST:], Y[-_NUM_LATEST:]) for name, (X, Y) in data.items()}
    tails = {
        name: [(x, y, 0) for x, y in zip(X.tolist(), Y.flatten().tolist(), strict=True)]
        for name, (X, Y) in latest.items()
    }
    _RECENT.extend(((*statement, *point), tails) for point in points)


def have_decided(parts: Iterable[Any], statement: tuple[Any, ...], data: Data) -> bool:
    """Return whether an earlier decision under this statement used any ``parts`` or ``data``.

    The ``statement`` consists of the limits and the level, and the ``parts`` are models and
    calibrators, as in `leave_traces`. The ``data`` are training data, inputs ``n x d`` and outcomes
    ``n x 1`` by outcome. They count as used if their last point is among the 100 points decided
    last, and the observations before it include the latest observations of the deciding model. On a
    grid, independent runs have points in common, but not all these observations.
    """
    if any(statement in _DECIDED.get(part, ()) for part in parts):
        return True
    with _LOCK:
        recent = [*_RECENT]
    for name, (X, Y) in data.items():
        end = (*statement, *X[-1].tolist()) if len(X) else None
        tails = [tails[name] for decided, tails in recent if decided == end and name in tails]
        if any(all(KnownData(X[:-1], Y[:-1]).take_all(tail)) for tail in tails):
            return True
    return False
