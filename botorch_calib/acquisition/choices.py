"""Exact lookup of points among the rows of a matrix."""

from __future__ import annotations

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor
from torch.nn import Module


class RowLookup(Module):
    """Finds points among given rows by their exact values.

    Rows are numbered column by column: each pair of a number so far and a value of the next
    column gets a new number, found by bisection. No distances are formed, so memory and time are
    those of sorting and bisecting the rows.

    Args:
        rows: ``n x d`` with ``n >= 1`` and finite values; of equal rows the first is found.
    """

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        codes = torch.zeros(len(rows), dtype=torch.long, device=rows.device)
        self.width = rows.shape[-1]
        for j in range(self.width):
            values, places = rows[:, j].unique(return_inverse=True)
            pairs, codes = (codes * len(values) + places).unique(return_inverse=True)
            self.register_buffer(f"values_{j}", values)
            self.register_buffer(f"pairs_{j}", pairs)
        order = torch.arange(len(rows), device=rows.device)
        first = torch.full_like(order, len(rows)).scatter_reduce(0, codes, order, "amin")
        self.register_buffer("first", first)

    def forward(self, X: Tensor) -> Tensor:
        """Positions of points among the rows.

        Args:
            X: ``batch_shape x d``.

        Returns:
            Integers of shape ``batch_shape``.

        Raises:
            BotorchTensorDimensionError: If the points have another number of columns.
            InputDataError: If a point is none of the rows.
        """
        if X.shape[-1] != self.width:
            raise BotorchTensorDimensionError(
                f"`X` must have {self.width} columns, as `choices` has, got {X.shape[-1]}."
            )
        codes = torch.zeros(X.shape[:-1], dtype=torch.long, device=X.device)
        known = torch.ones_like(codes, dtype=torch.bool)
        for j in range(self.width):
            values, pairs = self.get_buffer(f"values_{j}"), self.get_buffer(f"pairs_{j}")
            places, found = _bisect(values, X[..., j].to(values.dtype).contiguous())
            codes, paired = _bisect(pairs, codes * len(values) + places)
            known &= found & paired
        if not known.all():
            raise InputDataError(
                "`X` holds a point that is none of `choices`: optimise over these, with "
                "`optimize_acqf_discrete`."
            )
        return self.get_buffer("first")[codes]


def _bisect(table: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Places of values in a sorted table, and whether they are there."""
    places = torch.searchsorted(table, values).clamp_max(len(table) - 1)
    return places, table[places] == values
