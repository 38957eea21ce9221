"""Which rows of a table are equal to given ones: arrived values find their pending points."""

from __future__ import annotations

from collections import defaultdict, deque

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
