"""Compare the rows of tensors."""

from __future__ import annotations

import math
from collections import defaultdict, deque

import torch
from torch import Tensor

# Coordinates that differ by no more than this fraction of a parameter's range are taken as equal,
# since their difference is a rounding error. Larger differences make the points distinct.
ROUNDED = 1e-9


def is_any_of(points: Tensor, others: Tensor, tolerance: float = 0.0) -> Tensor:
    """Return whether each point, ``batch_shape x d``, equals any row of ``others``, ``n x d``.

    The result is boolean, ``batch_shape``. A point equals a row if they differ by no more than
    ``tolerance`` in each element.
    """
    # The maximum norm is computed from differences of elements. The Euclidean norm may be computed
    # from a sum of products, which would lose digits.
    apart = torch.cdist(points.reshape(-1, points.shape[-1]), others, p=math.inf)
    return (apart <= tolerance).any(dim=-1).reshape(points.shape[:-1])


def matching_rows(rows: Tensor, table: Tensor) -> list[int | None]:
    """Return, for each of the ``rows``, ``k x d``, the index of an equal row of a table ``n x d``.

    The index is None if no unmatched row of the table is equal. Each row of the table is matched at
    most once, and equal rows of the table are matched in their order.
    """
    places: dict[tuple[float, ...], deque[int]] = defaultdict(deque)
    for index, entry in enumerate(table.tolist()):
        places[tuple(entry)].append(index)
    queues = [places[tuple(row)] for row in rows.tolist()]
    return [queue.popleft() if queue else None for queue in queues]


def first_places(rows: Tensor) -> dict[tuple[float, ...], int]:
    """Map each distinct row of a tensor ``n x d``, as a tuple, to the index of its first copy."""
    places: dict[tuple[float, ...], int] = {}
    for index, row in enumerate(rows.tolist()):
        places.setdefault(tuple(row), index)
    return places


def first_appearances(points: Tensor) -> Tensor:
    """For each row of an ``n x d`` tensor, return the index of the first row equal to it.

    The result is ``n`` integers.
    """
    places = first_places(points)
    return torch.tensor([places[tuple(row)] for row in points.tolist()], device=points.device)
