"""Functions of a decision and a context, evaluated on all pairs of the two."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

# Keeps the direction of a vanishing gradient finite.
_TINY = 1e-30


class Columns:
    """Which columns of joint inputs ``z = (x, c)`` are decisions, and which are contexts.

    Args:
        num_columns: Number ``d`` of columns of joint inputs.
        num_contexts: Number ``d_c`` of contexts among them.
        indices: Columns of the contexts in the order of the contexts' own columns, negative ones
            counted from the end (default: the last ``d_c``).

    Raises:
        InputDataError: If these are not ``d_c`` different columns out of ``d``, or leave no
            decision.
    """

    def __init__(
        self, num_columns: int, num_contexts: int, indices: Sequence[int] | None = None
    ) -> None:
        if indices is None:
            indices = range(-num_contexts, 0)
        places = [int(i) + num_columns * (int(i) < 0) for i in indices]
        inside = all(0 <= place < num_columns for place in places)
        if not inside or len(places) != num_contexts or len(set(places)) != len(places):
            raise InputDataError(
                f"`context_indices` must be {num_contexts} different columns of {num_columns}, "
                f"got {list(indices)}."
            )
        self.context = places
        self.decision = [i for i in range(num_columns) if i not in places]
        if not self.decision:
            raise InputDataError(
                f"`contexts` with {num_contexts} columns leave no decision among {num_columns}."
            )

    def join(self, X: Tensor, contexts: Tensor) -> Tensor:
        """Joint inputs ``... x d`` of decisions ``... x d_x`` and contexts ``... x d_c``."""
        columns: list[Tensor] = [X.new_empty(0)] * (len(self.decision) + len(self.context))
        for part, places in ((X, self.decision), (contexts, self.context)):
            for column, place in zip(part.unbind(dim=-1), places, strict=True):
                columns[place] = column
        return torch.stack(torch.broadcast_tensors(*columns), dim=-1)


class _WithJacobian(Function):
    """Values whose derivatives are known already."""

    @staticmethod
    def forward(ctx: Any, X: Tensor, values: Tensor, jacobian: Tensor) -> Tensor:
        ctx.save_for_backward(jacobian)
        return values.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (jacobian,) = ctx.saved_tensors
        if grad.dim() == 1:
            return grad.unsqueeze(-1) * jacobian, None, None
        return (grad.unsqueeze(-2) @ jacobian).squeeze(-2), None, None


def with_jacobian(X: Tensor, values: Tensor, jacobian: Tensor) -> Tensor:
    """``values`` with a given derivative with respect to ``X``, once differentiable.

    Args:
        X: ``b x d``.
        values: ``b`` or ``b x M``; row ``i`` depends on row ``i`` of ``X`` alone.
        jacobian: Its derivatives, ``b x d`` or ``b x M x d``.
    """
    return _WithJacobian.apply(X, values, jacobian)


class ContextualFunction(ABC):
    """A function ``u(x, c)`` of decisions ``x`` and contexts ``c``, each pair on its own.

    Derivatives come out of the evaluation itself, chunk by chunk, so that memory is bounded by
    the results, and differentiating them costs no further evaluation. Results are once
    differentiable with respect to ``X``, and with respect to nothing else.
    """

    def __call__(self, X: Tensor, contexts: Tensor) -> Tensor:
        """Values at all pairs.

        Args:
            X: Decisions ``b x d_x``.
            contexts: ``M x d_c``.

        Returns:
            Values ``b x M``.
        """
        if not _wants_gradient(X):
            return self._evaluate(X.detach(), contexts, gradients=False)[0]
        values, gradients = self._evaluate(X.detach(), contexts, gradients=True)
        return with_jacobian(X, values, gradients[..., : X.shape[-1]])

    def with_gradients(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Values ``b x M`` as `__call__` gives them, and context gradients ``b x M x d_c``.

        The context gradients carry no graph; see `context_gradient_norm`.
        """
        values, gradients = self._evaluate(X.detach(), contexts, gradients=True)
        width = X.shape[-1]
        if _wants_gradient(X):
            values = with_jacobian(X, values, gradients[..., :width])
        return values, gradients[..., width:]

    def with_steepness(
        self, X: Tensor, contexts: Tensor, steepness_contexts: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Values ``b x M``, and the steepness ``max_c |grad_c u(x, c)|_2`` of each row.

        The derivative of the steepness is that of the norm at the maximising context (by Danskin's
        theorem): second derivatives of ``u`` at ``b`` points.

        Args:
            X: Decisions ``b x d_x``.
            contexts: ``M x d_c``.
            steepness_contexts: ``M' x d_c``, over which the steepness is taken (default:
                ``contexts``).
        """
        width, num = X.shape[-1], len(contexts)
        if steepness_contexts is None:
            steepness_contexts = contexts
            values, gradients = self.with_gradients(X, contexts)
        elif _wants_gradient(X):
            # In one pass, since values need gradients too.
            together = torch.cat([contexts, steepness_contexts.to(contexts)])
            values, gradients = self._evaluate(X.detach(), together, gradients=True)
            values = with_jacobian(X, values[:, :num], gradients[:, :num, :width])
            gradients = gradients[:, num:, width:]
        else:
            values = self(X, contexts)
            gradients = self.with_gradients(X, steepness_contexts)[1]
        steepness, places = torch.linalg.vector_norm(gradients, dim=-1).max(dim=-1)
        if not _wants_gradient(X):
            return values, steepness
        slopes = self._steepness(X.detach(), steepness_contexts[places])[1]
        return values, with_jacobian(X, steepness, slopes)

    def context_gradient_norm(self, X: Tensor, contexts: Tensor) -> Tensor:
        """The norm ``|grad_c u(x_i, c_i)|_2`` at one context per row.

        Args:
            X: Decisions ``b x d_x``.
            contexts: ``b x d_c``.

        Returns:
            Norms ``b``.
        """
        norms, slopes = self._steepness(X.detach(), contexts)
        return with_jacobian(X, norms, slopes) if _wants_gradient(X) else norms

    @abstractmethod
    def _evaluate(self, X: Tensor, contexts: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """Values ``b x M`` and their gradients ``b x M x (d_x + d_c)``, without a graph.

        The gradients (decisions first, then contexts) are of no use if ``gradients`` is False.
        """

    @abstractmethod
    def _steepness(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Norms ``b`` as of `context_gradient_norm`, and their slopes ``b x d_x``."""


def _wants_gradient(X: Tensor) -> bool:
    return torch.is_grad_enabled() and X.requires_grad


def norm_and_direction(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The norm ``...`` of vectors ``... x d``, and the vectors divided by it."""
    norm = torch.linalg.vector_norm(gradient, dim=-1)
    return norm, gradient / norm.clamp_min(_TINY).unsqueeze(-1)
