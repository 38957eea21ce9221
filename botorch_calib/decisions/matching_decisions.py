"""Which decisions outcomes belong to, each once: by equal points, and by points that were rounded.

A point may come back after arithmetic, from single precision, or written with six digits; and an
outcome may be told again, with all others, as BoTorch's loops tell a model all data.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

# Relative errors: of arithmetic, of single precision, and of six digits.
_ARITHMETIC, _SINGLE, SIX_DIGITS = 1e-9, 1.2e-7, 5.1e-6
# In units of the spread of the data: what six decimals leave out near 0, and more than which is
# another point, however large its numbers are.
_LEAST, _MOST = 1e-6, 1e-3

Outcomes = Mapping[str, float]


def tolerances(point: Tensor, table: Tensor, spread: Tensor) -> list[Tensor]:
    """Largest differences, ``n x d``, of a rounded point ``d`` from those of a table ``n x d``.

    After arithmetic, from single precision and with six digits. ``spread`` is the range ``d`` of
    the data.
    """
    size = torch.maximum(table.abs(), point.abs())
    digits = torch.where(spread > 0.0, _MOST * spread, torch.inf).minimum(SIX_DIGITS * size)
    decimal = digits.maximum(_LEAST * spread)
    whole = torch.maximum(size, spread)
    return [_ARITHMETIC * whole, _SINGLE * whole, decimal.maximum(_SINGLE * whole)]


class DecidedPoints:
    """The points of rows, and which of them a point may be that has come back.

    Those of another width than the ``spread``, which is the range ``d`` of the data, are none.
    """

    def __init__(self, points: Sequence[list[float]], spread: Tensor) -> None:
        self.points, self._spread = points, spread
        strange = [torch.nan] * len(spread)
        fitting = [point if len(point) == len(spread) else strange for point in points]
        self._table = torch.tensor(fitting, dtype=torch.double).view(-1, len(spread))
        self._places: dict[tuple[float, ...], list[int]] = defaultdict(list)
        for i, point in enumerate(points):
            self._places[tuple(point)].append(i)

    def near(self, point: list[float]) -> list[list[int]]:
        """Indices of equal points, then of points that are equal up to arithmetic.

        If none is equal, then of those that are within single precision, and within six digits.
        """
        exact, at = self._places.get(tuple(point), []), self._table.new_tensor(point)
        apart = (self._table - at).abs()
        within = tolerances(at, self._table, self._spread)[: 1 if exact else None]
        return [
            exact,
            *((apart <= each).all(dim=-1).nonzero().flatten().tolist() for each in within),
        ]

    def chosen(
        self, name: str, point: list[float], groups: Sequence[Sequence[int]], last: bool = False
    ) -> int | None:
        """The first, or the last, of the first group that is not empty, in the order of `near`.

        Raises:
            InputDataError: If the digits of ``point``, called ``name``, leave several.
        """
        for precision, group in enumerate(groups):
            if not group:
                continue
            first, *others = sorted(group)
            apart = (self._table[others] - self._table[first]).abs()
            same = tolerances(self._table[first], self._table[others], self._spread)[0]
            if precision > 1 and bool((apart > same).any()):
                other = others[int((apart > same).any(dim=-1).double().argmax())]
                raise InputDataError(
                    f"`{name}`, {point}, may be the decision about {self.points[first]} or the one "
                    f"about {self.points[other]}: it has too few digits to tell. Give the point as "
                    "`decisions` has it."
                )
            return max(group) if last else first
        return None


class Match(NamedTuple):
    """Where outcomes of a point belong to."""

    row: int | None  # None: to a new decision or, without new outcomes, to the first data
    names: set[str]  # of the outcomes that are new


def matches(
    rows: Sequence[Mapping[str, Any]],
    decided: DecidedPoints,
    points: Sequence[list[float]],
    came: Sequence[Outcomes],
    is_first: Sequence[bool],
) -> list[Match]:
    """Where the outcomes that ``came`` of each of the ``points`` belong to.

    An outcome belongs to the first decision about its point that lacks it. Otherwise it is told
    again where a decision about the point has just this outcome, or ``is_first`` says so for data
    that came before all decisions. Where anything is told again, all is: then outcomes that are
    known come before decisions that lack one.
    """
    near = [decided.near(point) for point in points]

    def assigned(order: Iterable[int], known_first: bool) -> list[Match]:
        lacks = [{name for name, y in row["outcomes"].items() if y is None} for row in rows]
        told: set[int] = set()
        found = [Match(None, set(each)) for each in came]

        def out(i: int, groups: list[list[int]]) -> Match | None:
            free = [[j for j in group if came[i].keys() <= lacks[j]] for group in groups]
            row = decided.chosen(f"X[{i}]", points[i], free)
            return None if row is None else Match(row, set(came[i]))

        def known(i: int, groups: list[list[int]]) -> Match | None:
            for j in (j for group in groups for j in group):
                new = came[i].keys() & lacks[j]
                if j not in told and _has(rows[j], came[i], new):
                    return Match(j, new)
            return None

        for i in order:
            exact, rounded = near[i][:1], near[i]
            first = Match(None, set()) if is_first[i] else None
            if known_first:
                match = known(i, exact) or first or known(i, rounded) or out(i, rounded)
            else:
                match = out(i, exact) or known(i, exact) or first
                match = match or out(i, rounded) or known(i, rounded)
            if match is None:
                continue
            found[i] = match
            if match.row is not None:
                lacks[match.row] -= match.names
                told |= set() if match.names else {match.row}
        return found

    def may_be_known(i: int) -> bool:
        return is_first[i] or any(_has(rows[j], came[i], set()) for j in sum(near[i], []))

    order = range(len(points))
    if not any(map(may_be_known, order)):
        return assigned(order, known_first=False)
    # If all that is known may still be new, it is.
    new_ones = assigned(sorted(order, key=may_be_known), known_first=False)
    return assigned(order, known_first=not all(match.names for match in new_ones))


def _has(row: Mapping[str, Any], came: Outcomes, new: set[str]) -> bool:
    """Whether a row has the outcomes that came, some at least, but for those that are ``new``."""
    others = came.keys() - new
    return bool(others) and all(row["outcomes"][name] == came[name] for name in others)
