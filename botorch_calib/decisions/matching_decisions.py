"""Which decisions outcomes belong to, each once: by equal points, and by points that were rounded.

A point may come back after arithmetic, from single precision, or written with six digits. An
outcome may come a second time, with all others, as BoTorch's loops give a model all data.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib.models.known_data import MOST_OF_RANGE, SIX_DIGITS, KnownData

# Relative errors of arithmetic and of single precision.
_ARITHMETIC, _SINGLE = 1e-9, 1.2e-7
# What six decimals leave out near 0, in units of the data's range.
_LEAST = 1e-6


def tolerances(point: Tensor, table: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """Largest differences, ``n x d``, of a point ``d`` that was rounded from those of a table.

    After arithmetic alone, and in single precision or with six digits. ``spread`` is the data's
    range, ``d``.
    """
    size = torch.maximum(table.abs(), point.abs())
    digits = torch.where(spread > 0.0, MOST_OF_RANGE * spread, torch.inf).minimum(SIX_DIGITS * size)
    size = size.maximum(spread)
    return _ARITHMETIC * size, digits.maximum(_LEAST * spread).maximum(_SINGLE * size)


class DecidedPoints:
    """The points of rows, and which of them a point may be that has come back.

    Those of another width than the ``spread``, which is the range ``d`` of the data, are none.
    """

    def __init__(self, points: Sequence[list[float]], spread: Tensor) -> None:
        self.points, self._spread = points, spread
        strange = [torch.nan] * len(spread)
        fitting = [point if len(point) == len(spread) else strange for point in points]
        self._table = torch.tensor(fitting, dtype=torch.double).view(-1, len(spread))

    def near(self, point: list[float]) -> list[list[int]]:
        """Indices of equal points, of points equal up to arithmetic, and to six digits."""
        at = self._table.new_tensor(point)
        apart = (self._table - at).abs()
        limits = [torch.zeros_like(apart), *tolerances(at, self._table, self._spread)]
        return [(apart <= limit).all(dim=-1).nonzero().flatten().tolist() for limit in limits]

    def chosen(
        self, name: str, point: list[float], groups: Sequence[Sequence[int]], last: bool = False
    ) -> int | None:
        """The first, or the last, of the first group that is not empty, in the order of `near`.

        Raises:
            InputDataError: If the digits of ``point``, called ``name``, leave several points.
        """
        for precision, group in enumerate(groups):
            for other in group if precision > 1 else []:
                first, second = self._table[group[0]], self._table[other]
                if bool(((first - second).abs() > _ARITHMETIC * self._spread).any()):
                    raise InputDataError(
                        f"`{name}`, {point}, may be the decision about {self.points[group[0]]} or "
                        f"the one about {self.points[other]}: it has too few digits to tell. Give "
                        "the point as `decisions` has it."
                    )
            if group:
                return group[-1] if last else group[0]
        return None


class Match(NamedTuple):
    """Where the outcomes of a point belong to."""

    row: int | None  # None: to a new decision
    new: set[str]  # names of the outcomes that have not come before


def matches(
    rows: Sequence[Mapping[str, Any]],
    num_first: int,
    decided: DecidedPoints,
    points: Sequence[list[float]],
    came: Sequence[Mapping[str, float]],
    sides: Sequence[Mapping[str, int]],
    data: Mapping[str, KnownData],
) -> list[Match]:
    """Which of the ``rows`` the outcomes that ``came`` of each of the ``points`` belong to.

    An outcome belongs to the first decision about its point that lacks it. If there is none, and a
    row about the point has just this outcome, also to six digits, the outcome is one that came
    before. (The first ``num_first`` rows are data from before all decisions; they have a stand-in
    for an outcome beyond a bound, on one of the ``sides``. ``data`` are the models'.) A value that
    other points have too, as on a grid, is no evidence of that, unless there are many such values.
    If one outcome is known to have come before, all data are taken to have been given again: then
    known outcomes are matched before decisions that lack one.
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
        """Whether row ``j`` may have the outcome of point ``i``, rounded or as a stand-in."""
        own, y = outcomes[j].get(name), came[i][name]
        if own is None:
            return False
        is_stand_in = j < num_first and sides[i].get(name, 0) * (own - y) > 0.0
        return is_stand_in or abs(own - y) <= data[name].rounding_of(y)

    def has(j: int, i: int, new: set[str]) -> bool:
        """Whether row ``j`` has the outcomes of point ``i``, some at least, except ``new`` ones."""
        others = came[i].keys() - new
        return bool(others) and all(same(j, name, i) for name in others)

    def is_telling(i: int) -> bool:
        elsewhere = torch.ones(len(rows), dtype=torch.bool)
        elsewhere[sum(near[i], [])] = False
        apart = {name: (values[name] - y).abs() for name, y in came[i].items()}
        return not all((elsewhere & (each <= rounding[name])).any() for name, each in apart.items())

    def assigned(order: Iterable[int], known_first: bool) -> list[Match]:
        lacks = [{name for name, y in each.items() if y is None} for each in outcomes]
        told: set[int] = set()
        found = [Match(None, set(each)) for each in came]

        def out(i: int, groups: list[list[int]]) -> Match | None:
            free = [[j for j in group if came[i].keys() <= lacks[j]] for group in groups]
            row = decided.chosen(f"X[{i}]", points[i], free)
            return None if row is None else Match(row, set(came[i]))

        def known(i: int, groups: list[list[int]]) -> Match | None:
            for j in (j for group in groups for j in group if j not in told):
                new = came[i].keys() & lacks[j]
                if has(j, i, new) and (new or known_first or telling[i]):
                    return Match(j, new)
            return None

        for i in order:
            exact, match = near[i][:1], known(i, near[i]) if known_first else None
            match = (
                match or out(i, exact) or known(i, exact) or out(i, near[i]) or known(i, near[i])
            )
            if match is not None and match.row is not None:
                found[i] = match
                lacks[match.row] -= match.new
                told |= set() if match.new else {match.row}
        return found

    may_be_known = [any(has(j, i, set()) for j in sum(near[i], [])) for i in order]
    telling = [may_be_known[i] and is_telling(i) for i in order]
    # First as if every outcome was new, those last that may be known.
    trial = assigned(sorted(order, key=may_be_known.__getitem__), known_first=False)
    is_again = not all(match.new for match in trial)
    num = sum(trial[i].row is None for i in order if may_be_known[i])
    observed = sum(None not in each.values() for each in outcomes) - num_first
    return assigned(order, is_again or num > max(2, min(observed or num, num_first or num) / 2))
