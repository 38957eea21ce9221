"""Recognise observations that a model's data already contain, and observed pending points."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib.exceptions import warn
from botorch_calib.models.outcome_transforms import train_data
from botorch_calib.models.process import of_one_member, raw_train_inputs

#: A difference between two values counts as rounding to six digits if it is at most `SIX_DIGITS`
#: times the value, and at most `MOST_OF_RANGE` times the range of the data. Otherwise the values
#: differ; the second limit matters for large values with a small range. Coordinates of points are
#: compared in the same way, with the range of their column, and errors of single precision always
#: count as rounding.
SIX_DIGITS, MOST_OF_RANGE = 5.1e-6, 1e-3
_SINGLE = float(np.finfo(np.float32).eps)


class KnownData:
    """A model's observations, for comparison with new observations.

    The observations have points ``n x d`` and values ``n x 1``. An observation that matches a new
    observation is removed, so each is matched at most once.
    """

    def __init__(self, X: Tensor, Y: Tensor) -> None:
        self.values: dict[tuple[float, ...], list[float]] = defaultdict(list)
        for point, y in zip(X.tolist(), Y.flatten().tolist(), strict=True):
            self.values[tuple(point)].append(y)
        # A model's outcomes have rounding errors of the outcome transform and its inverse, so
        # values match if their difference does not exceed this number.
        self.rounding = 16.0 * torch.finfo(Y.dtype).eps * (float(Y.abs().max()) if len(Y) else 0.0)
        self._range = float(Y.max() - Y.min()) if len(Y) else 0.0

    def rounding_of(self, y: float) -> float:
        """Return the largest difference from ``y`` that counts as rounding to six digits."""
        return max(self.rounding, min(SIX_DIGITS * abs(y), MOST_OF_RANGE * self._range))

    def take(
        self, point: Sequence[float], y: float | None, rounded: bool = False, side: int = 0
    ) -> bool:
        """Remove an observation at ``point`` with the value ``y``; return whether there was one.

        If several observations at ``point`` match, the last of them is removed. With ``y=None`` any
        value matches. With ``rounded``, points and values that agree to six digits match, too. If
        the outcome is known only to be above ``y`` (``side=1``) or below ``y`` (``side=-1``), the
        data contain a training value beyond this bound instead of the outcome (see `stand_ins`), so
        any value on that side matches.
        """
        place = self._place(point, y, rounded, side)
        if place is not None:
            values, index = place
            del values[index]
        return place is not None

    def _place(
        self, point: Sequence[float], y: float | None, rounded: bool, side: int
    ) -> tuple[list[float], int] | None:
        """The list with the observation that `take` removes, and its index there, or None."""
        own = self.values.get(tuple(point), [])
        index = _index_in(own, y, self.rounding, side)
        if index is not None or not rounded or y is None or not self.values:
            return None if index is None else (own, index)
        near = [own, *(self.values[other] for other in self._near(point))]
        for limit in (self.rounding, self.rounding_of(y)):
            for ys in near:
                index = _index_in(ys, y, limit, side)
                if index is not None:
                    return ys, index
        return None

    def take_all(
        self, observations: Iterable[tuple[Sequence[float], float | None, int]]
    ) -> list[bool]:
        """Call `take` for each triple ``(point, y, side)``; return its results in the given order.

        Triples with an exact value are matched first, then bounds (``side`` is 1 or -1), which
        match any value beyond them, and last triples with ``y=None``, which match any value. In
        another order, a bound could remove the observation that an exact value matches. For the
        same reason, triples of each kind are matched exactly before they are matched up to
        rounding.
        """
        listed = [*observations]
        found = [False] * len(listed)
        kinds = [2 if y is None else int(side != 0) for _, y, side in listed]
        for kind, digits in product(range(3), (False, True)):
            for i, (point, y, side) in enumerate(listed):
                if kinds[i] == kind and not found[i]:
                    found[i] = self.take(point, y, digits, side)
        return found

    @cached_property
    def _known(self) -> tuple[list[tuple[float, ...]], NDArray[np.float64], NDArray[np.float64]]:
        """All points: the keys of ``values`` as a list, and the same points as rows of a matrix.

        The last result is the largest error of six digits that is allowed in each column.
        """
        table = np.array([*self.values], dtype=np.float64)
        spread = np.ptp(table, axis=0)
        return [*self.values], table, np.where(spread > 0.0, MOST_OF_RANGE * spread, np.inf)

    def _near(self, point: Sequence[float]) -> list[tuple[float, ...]]:
        """Return the points of the data that agree with ``point`` to six digits in each column."""
        points, table, largest = self._known
        if len(point) != table.shape[-1]:
            return []
        at, near = np.asarray(point, dtype=np.float64), np.arange(len(points))
        # Most points differ in the first column. The other columns of such points are not compared,
        # which would take most of the time.
        for columns in (slice(1), slice(1, None)):
            own, other = table[near, columns], at[columns]
            size = np.maximum(np.abs(own), np.abs(other))
            digits = np.minimum(SIX_DIGITS * size, largest[columns])
            limit = np.maximum(digits, _SINGLE * size)
            near = near[(np.abs(own - other) <= limit).all(axis=-1)]
        return [points[j] for j in near]


def _index_in(own: list[float], y: float | None, rounding: float, side: int) -> int | None:
    for i in reversed(range(len(own))):
        off = 0.0 if y is None else own[i] - y
        if abs(off) <= rounding or side * off > 0.0:
            return i
    return None


def take_together(
    data: Mapping[str, KnownData], point: Sequence[float], outcomes: Mapping[str, tuple[float, int]]
) -> bool:
    """Remove an observation of each outcome at ``point``, up to rounding; return whether all exist.

    ``outcomes`` maps names to ``(y, side)``, see `KnownData.take`. If one is missing, none is
    removed.
    """
    places = [data[name]._place(point, y, True, side) for name, (y, side) in outcomes.items()]
    found = [place for place in places if place is not None]
    if len(found) < len(places):
        return False
    for values, index in found:
        del values[index]
    return True


def without_known(
    process: object, X: Tensor, Y: Tensor, Yvar: Tensor | None, sides: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return ``X, Y, Yvar, sides`` without the rows that a process's training data contain.

    Points and values are compared to six digits, since data may be passed again in single
    precision, or read from a file. Each training observation matches at most one row. ``X`` is
    ``n x d``; ``Y``, ``Yvar`` and ``sides`` are ``n x 1``. ``sides`` is 1 or -1 if the outcome is
    known only to be above or below ``Y``, and 0 otherwise (default: 0 everywhere). For such a bound
    the training data hold a stand-in value beyond the bound (see `stand_ins`), so any training
    value beyond the bound counts as a match.

    Warns:
        CalibrationWarning: If rows are removed.
    """
    known = KnownData(*train_data(process))
    signs = [0] * len(X) if sides is None else [*map(int, sides.flatten().tolist())]
    found = known.take_all(zip(X.tolist(), Y.flatten().tolist(), signs, strict=True))
    is_new = ~torch.tensor(found, dtype=torch.bool)
    if not is_new.all():
        warn(
            f"{int((~is_new).sum())} of {len(X)} observations, points and values, are among the "
            "data of the model already, to six digits, and are left out: it would score them with "
            "hindsight, and count them twice. Call `observe` with new observations only, then "
            "refit, then `with_model`. Include repeated measurements with equal values in the next "
            "fit."
        )
    is_new = is_new.to(X.device)
    Yvar, sides = (None if each is None else each[is_new] for each in (Yvar, sides))
    return X[is_new], Y[is_new], Yvar, sides


def still_pending(pending: Tensor, X: Tensor, process: object) -> Tensor:
    """Return the ``pending`` points, ``k x d``, that remain after observations at ``X``, ``n x d``.

    Each observation removes one pending point that agrees with it to six digits, the first of equal
    points. The ranges of the columns, on which the tolerance depends, include the training inputs
    of ``process``.
    """
    if not len(pending):
        return pending
    inputs = raw_train_inputs(process)
    if inputs is None or inputs.shape[-1] != pending.shape[-1]:
        inputs = pending[:0]
    inputs = of_one_member(inputs)
    # The values tell pending points, 0, from training inputs, 1.
    table = torch.cat([pending, inputs.to(pending)])
    is_known = torch.arange(len(table), device=table.device).unsqueeze(-1) >= len(pending)
    known = KnownData(table, is_known.to(table))
    known.take_all([(point, 0.0, 0) for point in X.tolist()])
    points = [*enumerate(pending.tolist())]
    left = [i for i, point in reversed(points) if known.take(point, 0.0)]
    return pending[left[::-1]]
