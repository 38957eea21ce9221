"""`PointwiseFunction`: any function of single joint inputs as a contextual one, by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from torch import Tensor
from torch.overrides import TorchFunctionMode

from botorch_calib.models.process import raw_train_inputs
from botorch_calib.robust.contextual_function import ContextualFunction, norm_and_direction
from botorch_calib.robust.joint_inputs import Columns

# Pairs per evaluation: memory grows with it, and the overhead of a call is spread over it.
_LEAST_CHUNK, _MOST_CHUNK = 256, 2048
# Covariances between pairs and observations per evaluation, where there is a choice.
_CHUNK_ELEMENTS = 2**18
# Squared distances below count as this, as in GPyTorch.
_LEAST_SQUARE = 1e-30
# Steps and factors of the central difference of the fourth order: its error is of order h^4, and
# rounding of order eps / h, which balance at a step h = eps^(1/5).
_STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))


def context_scale(data: Tensor | None, columns: Columns, points: Tensor) -> Tensor:
    """Scale ``d_c`` of contexts, from points ``M x d_c`` and a model's joint inputs ``... x d``."""
    if data is not None and data.shape[-1] == len(columns.decision) + len(columns.context):
        seen = data.detach()[..., columns.context].reshape(-1, len(columns.context))
        points = torch.cat([points, seen.to(points)])
    spread = points.std(dim=0, correction=0)
    size = points.abs().amax(dim=0)
    # A column that does not vary has the size of its value for a scale, and 1 where that is 0.
    return torch.where(spread > 0, spread, torch.where(size > 0, size, 1.0))


def pairs_per_chunk(model: Model | None) -> int:
    """Pairs that a model is evaluated at together: fewer, the more observations it has."""
    inputs = raw_train_inputs(model)
    num = 0 if inputs is None else inputs.shape[:-1].numel()
    return max(_LEAST_CHUNK, min(_MOST_CHUNK, _CHUNK_ELEMENTS // max(num, 1)))


class _TwiceDifferentiable(TorchFunctionMode):
    """``torch.cdist`` with second derivatives, which PyTorch lacks where there are few rows.

    GPyTorch's Matern kernels use it. At coincident points derivatives of the distance are zero.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.cdist and len(args) == 2 and kwargs.get("p", 2.0) == 2.0:
            differences = args[0].unsqueeze(-2) - args[1].unsqueeze(-3)
            return differences.square().sum(dim=-1).clamp_min(_LEAST_SQUARE).sqrt()
        return func(*args, **kwargs)


class PointwiseFunction(ContextualFunction):
    """A function of single joint inputs, such as an acquisition function of any model.

    It is evaluated in chunks, whose graphs are dropped at once. The slope of the steepness takes
    second derivatives along one direction: PyTorch's own, or, since many functions can be
    differentiated only once, fourth-order differences of first derivatives. Differences say nothing
    of a function that varies over much less than ``scale``, as a mean of improvements over samples
    does.

    Args:
        function: Maps ``N x 1 x d`` to values ``N``, row by row.
        columns: Which columns are contexts.
        scale: Of each context, ``d_c``, for differences, see `context_scale`; None for a function
            that can be differentiated twice.
        chunk: Pairs per evaluation, such as `pairs_per_chunk` of a model.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        columns: Columns,
        scale: Tensor | None = None,
        chunk: int = _MOST_CHUNK,
    ) -> None:
        self.function = function
        self.columns = columns
        self.scale = scale
        self.chunk = chunk

    def _evaluate(self, X: Tensor, contexts: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        shape = len(X), len(contexts)
        if 0 in shape:
            return X.new_empty(shape), X.new_empty(*shape, X.shape[-1] + contexts.shape[-1])
        parts = [self._differentiated(x, c, gradients) for x, c in self._pairs(X, contexts)]
        values, jacobians = (torch.cat(part) for part in zip(*parts, strict=True))
        return values.view(shape), jacobians.view(*shape, -1) if gradients else jacobians

    def _differentiated(self, x: Tensor, c: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """Values ``m`` at pairs and their gradients ``m x d``, decisions first, or none."""
        Z = self.columns.join(x, c).unsqueeze(-2)
        if not gradients:
            with torch.no_grad():
                return self._values(Z), x[:0]
        with torch.enable_grad():
            Z = Z.detach().requires_grad_()
            values = self._values(Z)
            (jacobian,) = torch.autograd.grad(values.sum(), Z)
        order = self.columns.decision + self.columns.context
        return values.detach(), jacobian.squeeze(-2)[:, order]

    def _values(self, Z: Tensor) -> Tensor:
        values = self.function(Z)
        if values.shape != Z.shape[:1]:
            raise UnsupportedError(
                f"There must be one value for each of {len(Z)} single inputs, got the shape "
                f"{tuple(values.shape)}: batches of models and input transforms that make several "
                "points of one are not supported."
            )
        return values

    def _gradient_norm(self, x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        if self.scale is None:
            return self._twice_along(x, c)
        return self._differences_along(x, c, self.scale.to(c))

    def _twice_along(self, x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Norms ``m`` of context gradients and their slopes ``m x d_x``, by two derivatives."""
        with torch.enable_grad(), _TwiceDifferentiable():
            x, c = x.detach().requires_grad_(), c.detach().requires_grad_()
            values = self._values(self.columns.join(x, c).unsqueeze(-2))
            (gradient,) = torch.autograd.grad(values.sum(), c, create_graph=True)
            norm, direction = norm_and_direction(gradient)
            # The norm itself has no derivative where the gradient vanishes; this has.
            (slope,) = torch.autograd.grad((gradient * direction.detach()).sum(), x)
        return norm.detach(), slope

    def _differences_along(self, x: Tensor, c: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The same, the slope being the change of the decision gradient along a direction."""
        width = x.shape[-1]
        norm, direction = norm_and_direction(self._differentiated(x, c, True)[1][:, width:])
        # The step of the stencil, in units of the scale.
        unit = (direction.abs() / scale).amax(dim=-1, keepdim=True)
        step = torch.finfo(c.dtype).eps ** 0.2 / unit.clamp_min(torch.finfo(c.dtype).tiny)
        move = torch.where(unit > 0, step * direction, 0.0)
        # grad_x |grad_c u| = (grad_x grad_c u) direction: the change of grad_x u along it.
        slope = torch.zeros_like(x)
        for num, factor in _STENCIL:
            slope += factor * self._differentiated(x, c + num * move, True)[1][:, :width]
        return norm, torch.where(unit > 0, slope / step, 0.0)
