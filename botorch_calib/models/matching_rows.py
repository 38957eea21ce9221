"""Comparison of the rows of tables."""

from __future__ import annotations

import math
from collections import defaultdict, deque

import torch
from torch import Tensor

# In units of the box: smaller differences are rounding errors, such as of multiples of a step.
ROUNDED = 1e-9


def is_any_of(points: Tensor, others: Tensor, tolerance: float = 0.0) -> Tensor:
    """Whether each of the points ``batch_shape x d`` equals a row of ``others``: ``batch_shape``.

    Equal points differ by at most the tolerance in each element. ``others`` are ``n x d``.
    """
    # The maximum norm takes differences of elements, without a sum of products that loses digits.
    apart = torch.cdist(points.reshape(-1, points.shape[-1]), others, p=math.inf)
    return (apart <= tolerance).any(dim=-1).reshape(points.shape[:-1])


def matching_rows(rows: Tensor, table: Tensor) -> list[int | None]:
    """Index in ``table`` (``n x d``) of each of the ``rows`` (``k x d``), by exact equality.

    A row without a match has None. Each row of the table matches at most once, and equal rows of
    the table match in their order.
    """
    places: dict[tuple[float, ...], deque[int]] = defaultdict(deque)
    for index, entry in enumerate(table.tolist()):
        places[tuple(entry)].append(index)
    queues = [places[tuple(row)] for row in rows.tolist()]
    return [queue.popleft() if queue else None for queue in queues]


def first_places(rows: Tensor) -> dict[tuple[float, ...], int]:
    """The first index of each distinct row of ``n x d``."""
    places: dict[tuple[float, ...], int] = {}
    for index, row in enumerate(rows.tolist()):
        places.setdefault(tuple(row), index)
    return places


def first_appearances(points: Tensor) -> Tensor:
    """For each row of ``n x d``, the index of the first equal row: ``n``."""
    places = first_places(points)
    return torch.tensor([places[tuple(row)] for row in points.tolist()], device=points.device)
