"""Joint inputs of decisions and contexts, as models take them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError
from torch import Tensor

from botorch_calib.robust.gp.contextual import Columns


def join_contexts(
    X: Tensor, contexts: Tensor, context_indices: Sequence[int] | None = None
) -> Tensor:
    """Joint inputs ``z = (x, c)`` of decisions and contexts, in the columns of a model.

    Args:
        X: Decisions ``... x d_x``.
        contexts: Contexts ``... x d_c``, whose batch dimensions broadcast with those of ``X``.
        context_indices: Columns of the contexts among those of the joint inputs, in the order of
            the contexts' own columns, negative ones counted from the end (default: the last
            ``d_c``). They are the ``context_indices`` of the acquisition function.

    Returns:
        A tensor ``... x d`` with ``d = d_x + d_c``, of the wider dtype of the two.

    Raises:
        BotorchTensorDimensionError: If the batch dimensions do not broadcast.
        InputDataError: If ``context_indices`` are not ``d_c`` different columns out of ``d``, or
            there is no decision.

    Example:
        >>> train_X = join_contexts(decisions, contexts)  # n x d_x and n x d_c: row by row
        >>> pairs = join_contexts(decisions.unsqueeze(-2), law.points)  # n x M x d: all pairs
    """
    for name, tensor in (("X", X), ("contexts", contexts)):
        if tensor.dim() == 0:
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
