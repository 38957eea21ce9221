"""Compare the rows of tables."""

from __future__ import annotations

import math
from collections import defaultdict, deque

import torch
from torch import Tensor

# Smaller differences, as fractions of a parameter's range, are rounding errors.
ROUNDED = 1e-9


def is_any_of(points: Tensor, others: Tensor, tolerance: float = 0.0) -> Tensor:
    """Whether each of the points, ``batch_shape x d``, equals a row of ``others``, ``n x d``.

    The result has the shape ``batch_shape``. Points are equal if they differ by at most the
    tolerance in each element.
    """
    # The maximum norm uses differences of elements. A sum of products would lose digits.
    apart = torch.cdist(points.reshape(-1, points.shape[-1]), others, p=math.inf)
    return (apart <= tolerance).any(dim=-1).reshape(points.shape[:-1])


def matching_rows(rows: Tensor, table: Tensor) -> list[int | None]:
    """Return for each of the ``rows``, ``k x d``, the index of an equal row of a table ``n x d``.

    The index is None if no row of the table is equal. Each row of the table is matched at most
    once, and equal rows of the table are matched in their order.
    """
    places: dict[tuple[float, ...], deque[int]] = defaultdict(deque)
    for index, entry in enumerate(table.tolist()):
        places[tuple(entry)].append(index)
    queues = [places[tuple(row)] for row in rows.tolist()]
    return [queue.popleft() if queue else None for queue in queues]


def first_places(rows: Tensor) -> dict[tuple[float, ...], int]:
    """Return the first index of each distinct row of a tensor ``n x d``."""
    places: dict[tuple[float, ...], int] = {}
    for index, row in enumerate(rows.tolist()):
        places.setdefault(tuple(row), index)
    return places


def first_appearances(points: Tensor) -> Tensor:
    """Return, for each row of a tensor ``n x d``, the index of the first equal row: ``n``."""
    places = first_places(points)
    return torch.tensor([places[tuple(row)] for row in points.tolist()], device=points.device)
