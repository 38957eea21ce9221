"""`median_cells`: regions of the inputs that hold about as many points each."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Cell(NamedTuple):
    """Some rows of a set of inputs, and the box that they were assigned to."""

    indices: Tensor  # of the rows, increasing
    lower: Tensor  # d
    upper: Tensor  # d


def median_cells(X: Tensor, num_cells: int) -> list[Cell]:
    """Partition inputs ``n x d`` by median splits along the widest coordinate, as a k-d tree does.

    The most populous cell is split until there are ``num_cells``, or no cell holds two different
    points. Widths are relative to the range of each coordinate, so units do not matter. The boxes
    partition the bounding box of all points.
    """
    low, high = X.min(dim=0).values, X.max(dim=0).values
    span = torch.where(high > low, high - low, torch.ones_like(low))
    cells = [Cell(torch.arange(len(X), device=X.device), low, high)]
    while len(cells) < num_cells:
        by_size = sorted(range(len(cells)), key=lambda i: -len(cells[i].indices))
        halves = ((i, _halves(X, cells[i], span)) for i in by_size)
        split = next(((i, parts) for i, parts in halves if parts), None)
        if split is None:
            break
        cells[split[0] : split[0] + 1] = split[1]
    return cells


def _halves(X: Tensor, cell: Cell, span: Tensor) -> list[Cell]:
    """The two parts of a cell, none where its points all coincide."""
    points = X[cell.indices]
    widths = (points.max(dim=0).values - points.min(dim=0).values) / span
    axis = int(widths.argmax())
    values = points[:, axis]
    if not widths[axis] > 0:
        return []
    # Ties at the median stay together; where it is the maximum, they form the upper part.
    median = values.median()
    left = values <= median if (values > median).any() else values < median
    cut = (values[left].max() + values[~left].min()) / 2
    upper, lower = cell.upper.clone(), cell.lower.clone()
    upper[axis] = lower[axis] = cut
    return [
        Cell(cell.indices[left], cell.lower, upper),
        Cell(cell.indices[~left], lower, cell.upper),
    ]
