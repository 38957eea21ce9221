"""`PointwiseFunction`: differentiates any function of decisions and contexts by autograd."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from torch import Tensor
from torch.overrides import TorchFunctionMode

from botorch_calib.models.process import raw_train_inputs
from botorch_calib.models.radial_kernels import LEAST_SQUARE
from botorch_calib.robust.contextual_function import ContextualFunction, norm_and_direction
from botorch_calib.robust.joint_inputs import Columns

# Limits on the number of pairs per evaluation. Larger chunks need more memory, but less time.
_LEAST_CHUNK, _MOST_CHUNK = 256, 2048
# Number of covariances between pairs and observations per evaluation, unless it violates a limit
_CHUNK_ELEMENTS = 2**18
# Points, in multiples of the step size h, and factors of the central difference of fourth order.
# The truncation error is of order h^4 and the rounding error of order eps / h. The two errors
# balance at h = eps^(1/5), which is used, in units of the scale of the contexts.
_STENCIL = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))


def context_scale(data: Sequence[Tensor], columns: Columns, points: Tensor) -> Tensor:
    """Scales ``d_c`` of contexts: standard deviations over ``points`` and the contexts in ``data``.

    ``points`` are contexts ``M x d_c``. ``data`` are sets of joint inputs ``n x d``, such as
    `training_points`. A set with another number of columns is ignored.
    """
    for inputs in data:
        if inputs.shape[-1] == len(columns.decision) + len(columns.context):
            points = torch.cat([points, inputs.detach()[:, columns.context].to(points)])
    spread = points.std(dim=0, correction=0)
    size = points.abs().amax(dim=0)
    # The scale of a constant column is its absolute value, or 1 if the value is 0.
    return torch.where(spread > 0, spread, torch.where(size > 0, size, 1.0))


def pairs_per_chunk(model: Model | None) -> int:
    """Number of pairs in one evaluation of a model: fewer, if the model has many observations."""
    inputs = raw_train_inputs(model)
    num = 0 if inputs is None else inputs.shape[:-1].numel()
    return max(_LEAST_CHUNK, min(_MOST_CHUNK, _CHUNK_ELEMENTS // max(num, 1)))


class _TwiceDifferentiable(TorchFunctionMode):
    """Mode in which ``torch.cdist`` has second derivatives, which PyTorch lacks for few rows.

    GPyTorch's Matern kernels call ``torch.cdist``. In this mode the derivatives of the distance
    between coincident points are zero.
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
            return differences.square().sum(dim=-1).clamp_min(LEAST_SQUARE).sqrt()
        return func(*args, **kwargs)


class PointwiseFunction(ContextualFunction):
    """A function of single inputs that join a decision and a context.

    The function ``u(x, c)`` may be an acquisition function of any model. It is evaluated in chunks,
    and each chunk's graph is freed at once. The derivative of ``|grad_c u(x, c)|`` with respect to
    ``x`` needs second derivatives along one direction. They come from autograd or, for functions
    that can be differentiated only once, from fourth-order finite differences of first derivatives.
    Finite differences are inaccurate for functions that vary over distances much smaller than
    ``scale``, such as a Monte Carlo mean of improvements.

    Args:
        function: Maps ``N x 1 x d`` to values ``N``, row by row.
        columns: The columns of decisions and contexts.
        scale: Scales of the contexts, ``d_c``, for finite differences (see `context_scale`); None
            for a function that can be differentiated twice.
        chunk: Number of pairs per evaluation, usually from `pairs_per_chunk`.
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
        """Values ``m`` at ``m`` pairs, and gradients ``m x d`` with respect to ``(x, c)``.

        The second tensor is empty if ``gradients`` is False.
        """
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
                f"{tuple(values.shape)}: batched models and input transforms that make several "
                "points from one are not supported."
            )
        return values

    def _gradient_norm(self, x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        if self.scale is None:
            return self._twice_along(x, c)
        return self._differences_along(x, c, self.scale.to(c))

    def _twice_along(self, x: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """Norms ``m`` of gradients with respect to contexts, and derivatives ``m x d_x`` of norms.

        The derivatives are with respect to decisions, and are computed by autograd.
        """
        with torch.enable_grad(), _TwiceDifferentiable():
            x, c = x.detach().requires_grad_(), c.detach().requires_grad_()
            values = self._values(self.columns.join(x, c).unsqueeze(-2))
            (gradient,) = torch.autograd.grad(values.sum(), c, create_graph=True)
            norm, direction = norm_and_direction(gradient)
            # The product has the same derivative as the norm but, unlike the norm, is
            # differentiable where the gradient vanishes.
            (slope,) = torch.autograd.grad((gradient * direction.detach()).sum(), x)
        return norm.detach(), slope

    def _differences_along(self, x: Tensor, c: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """Norms and derivatives as in `_twice_along`, by finite differences of derivatives."""
        width = x.shape[-1]
        norm, direction = norm_and_direction(self._differentiated(x, c, True)[1][:, width:])
        # A move by ``direction`` changes no context by more than ``unit`` scales, so the step size
        # of the stencil is eps^(1/5) scales.
        unit = (direction.abs() / scale).amax(dim=-1, keepdim=True)
        step = torch.finfo(c.dtype).eps ** 0.2 / unit.clamp_min(torch.finfo(c.dtype).tiny)
        move = torch.where(unit > 0, step * direction, 0.0)
        # grad_x |grad_c u| = (grad_x grad_c u) direction: the derivative of grad_x u along the
        # direction, which is zero where the gradient vanishes.
        slope = torch.zeros_like(x)
        for num, factor in _STENCIL:
            slope += factor * self._differentiated(x, c + num * move, True)[1][:, :width]
        return norm, torch.where(unit > 0, slope / step, 0.0)
