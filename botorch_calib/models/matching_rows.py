"""Which rows of a table are equal to given ones, or to one another."""

from __future__ import annotations

import math
from collections import defaultdict, deque

import torch
from torch import Tensor
from torch.nn import Module

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


class RowLookup(Module):
    """Finds points among finite rows ``n x d`` by exact equality, the first one of equal rows.

    Rows have codes, one column after the other: the code so far and the value in the next column
    are a pair, and each pair that occurs is a new code, found by bisection. Comparing all points
    with all rows would need memory for each pair, and sorting both together, as ``torch.unique``
    does, takes 15 times as long for 20 points and 1000 rows.
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        codes = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        for j, column in enumerate(rows.unbind(dim=-1)):
            values, places = column.unique(return_inverse=True)
            pairs, codes = (codes * len(values) + places).unique(return_inverse=True)
            self.register_buffer(f"values_{j}", values)
            self.register_buffer(f"pairs_{j}", pairs)
        order = torch.arange(len(rows), device=rows.device)
        first = torch.full_like(order, len(rows)).scatter_reduce(0, codes, order, "amin")
        self.register_buffer("first", first)

    def forward(self, X: Tensor) -> Tensor:
        """Places ``batch_shape`` of points ``batch_shape x d``; ``n`` for those that are no row."""
        codes = torch.zeros(X.shape[:-1], dtype=torch.long, device=X.device)
        known = torch.ones_like(codes, dtype=torch.bool)
        for j, column in enumerate(X.unbind(dim=-1)):
            values, pairs = self.get_buffer(f"values_{j}"), self.get_buffer(f"pairs_{j}")
            places, found = _bisect(values, column.to(values.dtype).contiguous())
            codes, paired = _bisect(pairs, codes * len(values) + places)
            known &= found & paired
        first = self.get_buffer("first")
        return torch.where(known, first[codes], len(first))


def first_appearances(points: Tensor) -> Tensor:
    """For each row of ``n x d`` the index of the first row that equals it, ``n``."""
    places: Tensor = RowLookup(points)(points)
    return places


def _bisect(table: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Places of values in a sorted table, and whether the table contains them."""
    places = torch.searchsorted(table, values).clamp_max(len(table) - 1)
    return places, table[places] == values
