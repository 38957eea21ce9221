"""Which rows of a table are equal to given ones, or to one another: exactly equal, no tolerance."""

from __future__ import annotations

from collections import defaultdict, deque

import torch
from torch import Tensor


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


def first_appearances(points: Tensor) -> Tensor:
    """For each row of ``n x d`` the index of the first row that equals it, ``n``."""
    unique, inverse = torch.unique(points, dim=0, return_inverse=True)
    places = torch.arange(len(points), device=inverse.device)
    first = places.new_full((len(unique),), len(points))
    return first.scatter_reduce(0, inverse, places, reduce="amin")[inverse]
