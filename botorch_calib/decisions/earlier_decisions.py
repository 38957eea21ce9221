"""Traces of decisions in this process, which reveal a constraint made without their records."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor

# Statements that models and calibrators have decided by, and the last points of decisions by each.
_DECIDED: WeakKeyDictionary[Any, set[Any]] = WeakKeyDictionary()
_RECENT: deque[tuple[Any, ...]] = deque(maxlen=100)


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
