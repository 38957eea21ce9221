"""Joint inputs ``z = (x, c)`` of decisions and contexts, in the column order of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError
from torch import Tensor

from botorch_calib._validation import check_columns, check_tensor


class Columns:
    """Column numbers of decisions and contexts in joint inputs ``z = (x, c)``.

    ``num_contexts`` of the ``num_columns`` columns hold contexts: the columns ``indices``, in this
    order (None: the last columns). The other columns hold decisions, in increasing order.
    """

    def __init__(
        self, num_columns: int, num_contexts: int, indices: Sequence[int] | None = None
    ) -> None:
        if num_contexts >= num_columns:
            raise InputDataError(
                f"`contexts` with {num_contexts} columns leave no decision among {num_columns}."
            )
        if indices is None:
            indices = range(-num_contexts, 0)
        given = check_columns("context_indices", indices)
        places = [place + num_columns * (place < 0) for place in given]
        inside = all(0 <= place < num_columns for place in places)
        if not inside or len(places) != num_contexts or len(set(places)) != len(places):
            raise InputDataError(
                f"`context_indices`, or `indices` of the contexts, must be {num_contexts} "
                f"different columns of {num_columns}, got {list(indices)}."
            )
        self.context = places
        self.decision = [i for i in range(num_columns) if i not in places]

    def join(self, X: Tensor, contexts: Tensor) -> Tensor:
        """Joint inputs ``... x d`` of decisions ``... x d_x`` and contexts ``... x d_c``."""
        columns: list[Tensor] = [X.new_empty(0)] * (len(self.decision) + len(self.context))
        for part, places in ((X, self.decision), (contexts, self.context)):
            for column, place in zip(part.unbind(dim=-1), places, strict=True):
                columns[place] = column
        return torch.stack(torch.broadcast_tensors(*columns), dim=-1)


def join_contexts(
    X: Tensor, contexts: Tensor, context_indices: Sequence[int] | None = None
) -> Tensor:
    """Return joint inputs ``z = (x, c)`` in the column order of a model.

    The result has the shape ``... x d`` with ``d = d_x + d_c``.

    Args:
        X: Decisions ``... x d_x``.
        contexts: Contexts ``... x d_c``, whose batch dimensions broadcast with those of ``X``.
        context_indices: Columns of the joint inputs for the columns of ``contexts``, in this order.
            Negative indices count from the end (default: the last ``d_c``).

    Raises:
        InputDataError, BotorchTensorDimensionError: If an argument is malformed.

    Example:
        >>> data = join_contexts(X[:, :1], X[:, 1:])  # row by row, n x d
        >>> pairs = join_contexts(X[:, :1].unsqueeze(-2), contexts.points)  # all pairs, n x M x d
    """
    for name, tensor in (("X", X), ("contexts", contexts)):
        if check_tensor(name, tensor).dim() == 0:
            raise BotorchTensorDimensionError(f"`{name}` must have a last dimension of columns.")
    try:
        torch.broadcast_shapes(X.shape[:-1], contexts.shape[:-1])
    except RuntimeError as error:
        raise BotorchTensorDimensionError(
            f"`X` and `contexts` must have batch dimensions that broadcast, got "
            f"{tuple(X.shape)} and {tuple(contexts.shape)}."
        ) from error
    width, num_contexts = X.shape[-1] + contexts.shape[-1], contexts.shape[-1]
    return Columns(width, num_contexts, context_indices).join(X, contexts)
