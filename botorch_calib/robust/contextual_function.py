"""`ContextualFunction`: the interface of functions that ambiguity sets evaluate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

# Lower limit of norms in denominators, so that the direction of a zero gradient is 0, not NaN
_TINY = 1e-30
# Number of the largest gradient norms that enter a smooth maximum; smaller norms are ignored
_LARGEST = 16


class _WithJacobian(Function):
    """Implements `with_jacobian`."""

    @staticmethod
    def forward(ctx: FunctionCtx, X: Tensor, values: Tensor, jacobian: Tensor) -> Tensor:
        ctx.save_for_backward(jacobian)
        return values.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: BackwardCFunction, grad: Tensor) -> tuple[Tensor, None, None]:
        (jacobian,) = ctx.saved_tensors
        return torch.einsum("b...,b...d->bd", grad, jacobian), None, None


def with_jacobian(X: Tensor, values: Tensor, jacobian: Tensor) -> Tensor:
    """Return ``values``, ``b`` or ``b x M``, with a given Jacobian with respect to ``X``.

    Row ``i`` of the values depends only on row ``i`` of ``X``, ``b x d``, so ``jacobian`` has the
    shape ``b x d`` or ``b x M x d``. The result can be differentiated once.
    """
    return _WithJacobian.apply(X, values, jacobian)


class ContextualFunction(ABC):
    """A function ``u(x, c)`` of pairs of decisions ``x`` and contexts ``c``.

    `botorch_calib.robust.gp.pointwise_function.PointwiseFunction` wraps any function of joint
    inputs. Derivatives are computed together with the values, in chunks, to limit memory use.
    Results are differentiable once, with respect to the decisions ``X`` only.
    """

    chunk = 2048  # number of pairs whose second derivatives are computed together

    def __call__(self, X: Tensor, contexts: Tensor) -> Tensor:
        """Values ``b x M`` at all pairs of decisions ``b x d_x`` and contexts ``M x d_c``."""
        if not _wants_gradient(X):
            return self._evaluate(X.detach(), contexts, gradients=False)[0]
        return self.with_gradients(X, contexts)[0]

    def with_gradients(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Values as in `__call__`, and their gradients with respect to contexts, ``b x M x d_c``.

        The gradients are without a graph, so they cannot be differentiated again.
        """
        values, gradients = self._evaluate(X.detach(), contexts, gradients=True)
        width = X.shape[-1]
        if _wants_gradient(X):
            values = with_jacobian(X, values, gradients[..., :width])
        return values, gradients[..., width:]

    def with_steepness(
        self,
        X: Tensor,
        contexts: Tensor,
        steepness_contexts: Tensor | None = None,
        smoothing: float = 0.0,
    ) -> tuple[Tensor, Tensor]:
        """Values ``b x M``, and the steepness ``max_c |grad_c u(x, c)|_2`` at each decision.

        The steepness has the shape ``b``. The maximum is over ``steepness_contexts``, ``M' x d_c``
        (default: ``contexts``). The derivative of the maximum with respect to ``x`` is the
        derivative of the norm at the maximising context (Danskin's theorem). With ``smoothing`` in
        (0, 1], the maximum is replaced with the vector norm of order ``1 / smoothing`` of the 16
        largest gradient norms, which is their sum if ``smoothing`` is 1.
        """
        if steepness_contexts is None:
            steepness_contexts = contexts
            values, gradients = self.with_gradients(X, contexts)
        else:
            values = self(X, contexts)
            gradients = self.with_gradients(X, steepness_contexts)[1]
        norms = torch.linalg.vector_norm(gradients, dim=-1)
        # Without smoothing only the largest norm counts, and a norm of any order returns it.
        most, order = (_LARGEST, 1.0 / smoothing) if smoothing > 0.0 else (1, 1.0)
        norms, places = norms.topk(min(most, norms.shape[-1]), dim=-1)
        steepness, weights = _norm_of_order(order, norms)
        if not _wants_gradient(X):
            return values, steepness
        slopes = self.norms_with_slopes(X, steepness_contexts[places])[1]
        return values, with_jacobian(X, steepness, torch.einsum("bk,bkd->bd", weights, slopes))

    def gradient_norms(self, X: Tensor, contexts: Tensor) -> Tensor:
        """Differentiable norms ``|grad_c u(x, c)|_2`` at all pairs, ``b x M``."""
        if not _wants_gradient(X):
            return torch.linalg.vector_norm(self.with_gradients(X, contexts)[1], dim=-1)
        return with_jacobian(X, *self.norms_with_slopes(X, contexts))

    def norms_with_slopes(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Norms ``b x M`` as in `gradient_norms`, and the gradients of the norms, ``b x M x d_x``.

        The gradients are with respect to decisions. Contexts are ``M x d_c``, or ``b x M x d_c``
        with different contexts for each decision. The results have no graph.
        """
        shape = (len(X), contexts.shape[-2])
        parts = [self._gradient_norm(x, c) for x, c in self._pairs(X.detach(), contexts.detach())]
        norms, slopes = (torch.cat(part) for part in zip(*parts, strict=True))
        return norms.view(shape), slopes.view(*shape, X.shape[-1])

    def _pairs(self, X: Tensor, contexts: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """All pairs, ``chunk`` at a time: decisions ``m x d_x`` and contexts ``m x d_c``."""
        num, contexts = contexts.shape[-2], contexts.expand(len(X), -1, -1)
        # Without pairs there is one empty chunk, as callers need one.
        for start in range(0, max(len(X) * num, 1), self.chunk):
            place = torch.arange(start, min(start + self.chunk, len(X) * num), device=X.device)
            row = place // max(num, 1)
            yield X[row], contexts[row, place % max(num, 1)]

    @abstractmethod
    def _evaluate(self, X: Tensor, contexts: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """Values ``b x M``, and gradients ``b x M x (d_x + d_c)`` with respect to ``(x, c)``.

        The results must have no graph. If ``gradients`` is False, the second tensor is ignored.
        """

    @abstractmethod
    def _gradient_norm(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Norms ``|grad_c u(x_i, c_i)|_2`` of shape ``b``, and gradients ``b x d_x`` of the norms.

        Decisions are ``b x d_x`` and contexts are ``b x d_c``. The gradients are with respect to
        decisions. The results must have no graph.
        """


def _wants_gradient(X: Tensor) -> bool:
    return torch.is_grad_enabled() and X.requires_grad


def _norm_of_order(p: float, values: Tensor) -> tuple[Tensor, Tensor]:
    """Norms ``b`` of order ``p`` of nonnegative rows ``v`` of ``values``, ``b x M``.

    The second result contains the derivatives ``(v_i / |v|_p)^(p - 1)`` of the norms, ``b x M``.
    Powers of ratios do not overflow, unlike powers of the values.
    """
    largest = values.amax(dim=-1, keepdim=True)
    ratio = values / largest.clamp_min(_TINY)
    # The sum is at least 1 unless all values are 0. The limit of 1 then makes the norm 0, and the
    # derivatives 0 if p > 1, where they would be NaN otherwise.
    total = ratio.pow(p).sum(dim=-1, keepdim=True).clamp_min(1.0)
    norm = total.pow(1.0 / p)
    return (largest * norm).squeeze(-1), (ratio / norm).pow(p - 1.0)


def norm_and_direction(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the norms of vectors along the last dimension, and the vectors divided by the norms.

    The direction of a zero vector is 0.
    """
    norm = torch.linalg.vector_norm(gradient, dim=-1)
    return norm, gradient / norm.clamp_min(_TINY).unsqueeze(-1)
