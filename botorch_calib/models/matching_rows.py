"""Which rows of a table are equal to given ones, or to one another."""

from __future__ import annotations

import math
from collections import defaultdict, deque

import torch
from torch import Tensor

# In units of the box: smaller differences are due to rounding, as of multiples of a step.
ROUNDED = 1e-9


def is_any_of(points: Tensor, others: Tensor, tolerance: float = 0.0) -> Tensor:
    """Which points ``batch_shape x d`` equal one of ``n x d`` others: booleans ``batch_shape``.

    No element differs by more than the tolerance. There may be no others.
    """
    # For this norm distances are differences of elements: no sum of products loses digits.
    apart = torch.cdist(points.reshape(-1, points.shape[-1]), others, p=math.inf)
    return (apart <= tolerance).any(dim=-1).reshape(points.shape[:-1])


def matching_rows(rows: Tensor, table: Tensor) -> list[int | None]:
    """Index in ``table`` (``n x d``) of each of the ``rows`` (``k x d``), by exact equality.

    None without a match. Each row of the table is matched at most once, the first of equal ones
    first.
    """
    places: dict[tuple[float, ...], deque[int]] = defaultdict(deque)
    for index, entry in enumerate(table.tolist()):
        places[tuple(entry)].append(index)
    queues = [places[tuple(row)] for row in rows.tolist()]
    return [queue.popleft() if queue else None for queue in queues]


def first_places(rows: Tensor) -> dict[tuple[float, ...], int]:
    """The index of each row of ``n x d``, of equal ones the first."""
    places: dict[tuple[float, ...], int] = {}
    for index, row in enumerate(rows.tolist()):
        places.setdefault(tuple(row), index)
    return places


def first_appearances(points: Tensor) -> Tensor:
    """For each row of ``n x d`` the index of the first row that equals it, ``n``."""
    places = first_places(points)
    return torch.tensor([places[tuple(row)] for row in points.tolist()], device=points.device)
