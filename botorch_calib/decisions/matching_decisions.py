"""Match outcomes to decisions by comparing their points, so that each outcome counts once.

Points are compared exactly or up to rounding. A point may be passed again with rounding errors from
arithmetic, single precision, or a file with six digits. An outcome may be passed again with all
other data, as in BoTorch's loops.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib.models.known_data import MOST_OF_RANGE, SIX_DIGITS, KnownData, take_together

# Relative errors of arithmetic and of single precision.
_ARITHMETIC, _SINGLE = 1e-9, 1.2e-7
# The absolute rounding error of numbers near 0 with six decimals, in units of the data's range.
_LEAST = 1e-6


def tolerances(point: Tensor, table: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Return the largest differences of a point ``d`` from rows ``n x d`` that count as rounding.

    Both results are ``n x d``. The first allows for errors of arithmetic only, the second for
    single precision or six digits. ``spread`` is the range of each column of the data, ``d``.
    """
    size = torch.maximum(table.abs(), point.abs())
    digits = torch.where(spread > 0.0, MOST_OF_RANGE * spread, torch.inf).minimum(SIX_DIGITS * size)
    size = size.maximum(spread)
    return _ARITHMETIC * size, digits.maximum(_LEAST * spread).maximum(_SINGLE * size)


class DecidedPoints:
    """The points of decisions, to be matched with points that are passed again.

    ``spread`` is the range of each column of the data, ``d``. Points that do not have ``d``
    elements match nothing.
    """

    def __init__(self, points: Sequence[list[float]], spread: Tensor) -> None:
        self.points, self._spread = points, spread
        strange = [torch.nan] * len(spread)
        fitting = [point if len(point) == len(spread) else strange for point in points]
        self._table = torch.tensor(fitting, dtype=torch.double).view(-1, len(spread))

    def near(self, point: list[float]) -> list[list[int]]:
        """Return three groups of indices of the decided points that are equal to ``point``.

        The points are equal exactly in the first group, up to errors of arithmetic in the second
        group, and up to single precision or six digits in the third. Each group contains the
        groups before it.
        """
        at = self._table.new_tensor(point)
        apart = (self._table - at).abs()
        limits = [torch.zeros_like(apart), *tolerances(at, self._table, self._spread)]
        return [(apart <= limit).all(dim=-1).nonzero().flatten().tolist() for limit in limits]

    def chosen(
        self, name: str, point: list[float], groups: Sequence[Sequence[int]], last: bool = False
    ) -> int | None:
        """Return the first (or ``last``) index in the most precise group that is not empty.

        The ``groups`` are in the form that `near` returns. The result is None if all are empty. If
        different decided points agree with the digits of ``point``, an error, which calls
        ``point`` ``name``, is raised.
        """
        for precision, group in enumerate(groups):
            for other in group if precision > 1 else []:
                first, second = self._table[group[0]], self._table[other]
                if bool(((first - second).abs() > _ARITHMETIC * self._spread).any()):
                    raise InputDataError(
                        f"`{name}`, {point}, has too few digits: it matches the decisions about "
                        f"{self.points[group[0]]} and {self.points[other]}. Pass the point as in "
                        "`decisions`."
                    )
            if group:
                return group[-1] if last else group[0]
        return None


class Match(NamedTuple):
    """The row of a decision to which the outcomes of a point belong."""

    near: list[int]  # indices of all rows about the point
    new: set[str]  # names of the outcomes that were not recorded before
    row: int | None = None  # index of the row; None if the point needs a new decision


def matches(
    rows: Sequence[Mapping[str, Any]],
    num_first: int,
    decided: DecidedPoints,
    points: Sequence[list[float]],
    came: Sequence[Mapping[str, tuple[float, int]]],
    data: Mapping[str, KnownData],
) -> list[Match]:
    """Match the outcomes ``came`` of each of the ``points`` with ``rows``.

    An outcome belongs to the first decision about its point that has no outcome yet. If there is no
    such decision, but a row about the point has an equal outcome (to six digits), the outcome was
    recorded before. If so, all data may have been passed again, and outcomes are then matched with
    equal outcomes before they are matched with decisions without an outcome. This requires that no
    row about another point has the same value, as rounded outcomes have, or that many of the
    outcomes were recorded before.

    An outcome in ``came`` is a pair of a value and 1 if the outcome is above the value, -1 if it is
    below, and 0 if it equals the value. The first ``num_first`` of the ``rows`` hold data from
    before the first decision, in which a training value beyond a bound (a stand-in) may replace the
    bound. The points of the rows are ``decided``, and ``data`` holds, by outcome, the models'
    training data that belong to no row. The result has a `Match` for each of the ``points``.
    """
    near = [decided.near(point) for point in points]
    order, outcomes = range(len(points)), [row["outcomes"] for row in rows]
    values, rounding = {}, {}
    for name in data:
        own = [torch.nan if (y := each.get(name)) is None else y for each in outcomes]
        values[name] = torch.tensor(own, dtype=torch.double)
        rounding[name] = torch.zeros_like(values[name])
        rounding[name][:num_first] = data[name].rounding

    def same(j: int, name: str, i: int) -> bool:
        """Whether row ``j`` may hold outcome ``name`` of point ``i``, rounded or as a stand-in."""
        own, (y, side) = outcomes[j].get(name), came[i][name]
        if own is None:
            return False
        is_stand_in = j < num_first and side * (own - y) > 0.0
        return is_stand_in or abs(own - y) <= data[name].rounding_of(y)

    def has(j: int, i: int, new: set[str]) -> bool:
        """Whether row ``j`` holds all outcomes of point ``i`` (at least one) except ``new``."""
        others = came[i].keys() - new
        return bool(others) and all(same(j, name, i) for name in others)

    def is_telling(i: int) -> bool:
        elsewhere = torch.ones(len(rows), dtype=torch.bool)
        elsewhere[near[i][-1]] = False
        apart = {name: (values[name] - y).abs() for name, (y, _) in came[i].items()}
        return not all((elsewhere & (each <= rounding[name])).any() for name, each in apart.items())

    def assigned(order: Iterable[int], known_first: bool) -> list[Match]:
        lacks = [{name for name, y in each.items() if y is None} for each in outcomes]
        repeated: set[int] = set()
        found = [Match(near[i][-1], set(came[i])) for i in range(len(points))]

        def out(i: int, groups: list[list[int]]) -> Match | None:
            free = [[j for j in group if came[i].keys() <= lacks[j]] for group in groups]
            row = decided.chosen(f"X[{i}]", points[i], free)
            return None if row is None else found[i]._replace(row=row)

        def known(i: int, groups: list[list[int]], is_sure: bool) -> Match | None:
            for j in (j for group in groups for j in group if j not in repeated):
                new = came[i].keys() & lacks[j]
                if has(j, i, new) and (new or is_sure):
                    return found[i]._replace(row=j, new=new)
            return None

        for i in order:
            exact, match = near[i][:1], known(i, near[i], True) if known_first else None
            match = match or out(i, exact) or known(i, exact, telling[i]) or out(i, near[i])
            # Without an open decision, an equal outcome was recorded before. A second measurement
            # would be an exception: its point was chosen again, without `decide`, and the outcome
            # happened to be equal. A decision made now about a known outcome would use hindsight.
            # If the model has one observation more than the rows, there was a second measurement.
            match = match or known(i, near[i], not is_surplus[i])
            if match is not None and match.row is not None:
                found[i] = match
                lacks[match.row] -= match.new
                repeated |= set() if match.new else {match.row}
        return found

    may_be_known = [any(has(j, i, set()) for j in near[i][-1]) for i in order]
    spare = copy.deepcopy(data) if any(may_be_known) else data
    is_surplus = [may_be_known[i] and take_together(spare, points[i], came[i]) for i in order]
    telling = [may_be_known[i] and not is_surplus[i] and is_telling(i) for i in order]
    # First assume that all outcomes are new, and assign those last that may be recorded already. If
    # an outcome is recognised by a value of its own, or if many are, all data came again.
    trial = assigned(sorted(order, key=may_be_known.__getitem__), known_first=False)
    is_again = any(telling[i] and not trial[i].new for i in order)
    num = sum(may_be_known[i] and (trial[i].row is None or not trial[i].new) for i in order)
    observed = sum(None not in each.values() for each in outcomes) - num_first
    return assigned(order, is_again or num > max(2, min(observed or num, num_first or num) / 2))
