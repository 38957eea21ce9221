"""Upper confidence bounds of all pairs of decisions and contexts, and their context gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from torch import Tensor

from botorch_calib.robust.contextual import Columns, ContextualFunction, norm_and_direction
from botorch_calib.robust.fallback import PointwiseFunction, pairs_per_chunk
from botorch_calib.robust.stationary import StationaryGP, is_stationary, stationary_gp

# Pairs per chunk: few enough for the buffers to stay in the cache, where that is possible.
_BUFFER_ELEMENTS = 2**18
_LEAST_ROWS, _MOST_ROWS = 256, 1024
# As in BoTorch: keeps the gradient of the standard deviation finite where the variance vanishes.
_MIN_VARIANCE = 1e-12


class ClosedFormConfidenceBound(ContextualFunction):
    r"""``sign * mu(x, c) + sqrt(beta) sigma(x, c)`` of a `StationaryGP`, in closed form.

    With ``k`` the kernel's values between a pair and the training inputs ``z_i``, and
    ``V = P k`` for the cached precision ``P``, the gradient with respect to scaled inputs ``s`` is

        ``2 sum_i (sign * weights_i - sqrt(beta)/sigma V_i) f'_i (s - s_i)``,

    where ``f'_i`` is the derivative of the kernel with respect to the squared distance. So one
    product ``(b M x n)(n x n)`` gives values and gradients alike. It is made in chunks, each of
    which passes through a few buffers. (If the training covariance is badly conditioned, the
    variance comes from a root of ``P`` instead, and ``V`` by a second product.) Where the
    variance is at its least, ``sigma`` counts as constant.

    Args:
        gp: The posterior; see `stationary_gp`.
        columns: Which columns are contexts.
        beta: BoTorch's ``beta``, which is under the root, as a scalar tensor.
        sign: 1 for an upper bound of ``f``, -1 for one of ``-f``.
    """

    def __init__(self, gp: StationaryGP, columns: Columns, beta: Tensor, sign: float = 1.0) -> None:
        order = columns.decision + columns.context
        self.gp = gp
        self.columns = columns
        self._inputs = gp.inputs[:, order]
        self._slope = gp.slope[order]
        self._width = beta.to(gp.inputs).sqrt()
        self._sign = sign
        self._weights = sign * gp.weights
        # One product with this gives sums over training inputs, and the sum of the factors.
        self._padded = torch.nn.functional.pad(self._inputs, (0, 1), value=1.0)

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether a model is of a kind that has a closed form; see `stationary_gp`."""
        return is_stationary(model)

    # ------------------------------------------------------------ all pairs

    @torch.no_grad()
    def _evaluate(self, X: Tensor, contexts: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """See `ContextualFunction._evaluate`."""
        points = self._scaled(X, contexts)
        split = X.shape[-1]
        halves = self._inputs[:, :split], self._inputs[:, split:]
        first, second = (
            self.gp.profile.prepare(squared_distances(part, inputs))
            for part, inputs in zip(points, halves, strict=True)
        )
        values = first.new_empty(len(first), len(second))
        width = self._inputs.shape[-1] if gradients else 0
        results = first.new_empty(len(first), len(second), width)
        for rows, cols, buffers in self._chunks(len(first), len(second)):
            value, sums = self._chunk(first[rows, None], second[None, cols], buffers, gradients)
            values[rows, cols] = value
            if gradients:
                part = results[rows, cols]
                torch.mul(points[0][rows, None], sums[..., -1:], out=part[..., :split])
                torch.mul(points[1][None, cols], sums[..., -1:], out=part[..., split:])
                part.sub_(sums[..., :-1]).mul_(2.0 * self._slope)
        return values.to(X), results.to(X)

    def _chunk(
        self, first: Tensor, second: Tensor, buffers: list[Tensor], gradients: bool
    ) -> tuple[Tensor, Tensor]:
        """Values ``step x M'``, and sums ``step x M' x (d + 1)`` over training inputs."""
        shape = (first.shape[0], second.shape[1])
        k, g = (part.flatten(0, 1) for part in self.gp.profile.fill(first, second, buffers))
        spare = [part.flatten(0, 1) for part in buffers[2:]]
        V, reduction = self._solved(k, spare, gradients)
        sigma, ratio = self._deviation(self.gp.variance - reduction)
        value = torch.addmv(sigma.mul_(self._width), k, self._weights)
        value.add_(self.gp.mean, alpha=self._sign)
        if not gradients:
            return value.view(shape), value
        V.mul_(ratio.unsqueeze(-1)).add_(self._weights).mul_(g)
        return value.view(shape), (self.gp.profile.slope * (V @ self._padded)).view(*shape, -1)

    def _solved(self, k: Tensor, out: list[Tensor], gradients: bool) -> tuple[Tensor, Tensor]:
        """``k P``, unless it is not needed, in the first buffer, and the diagonal of ``k P k'``."""
        root = self.gp.root
        if root is None:
            V = torch.mm(k, self.gp.precision, out=out[0])
            return V, torch.linalg.vecdot(k, V)
        W = torch.mm(k, root, out=out[1])
        V = torch.mm(W, root.mT, out=out[0]) if gradients else W
        return V, torch.linalg.vecdot(W, W)

    def _deviation(self, variance: Tensor) -> tuple[Tensor, Tensor]:
        """``sigma``, and what ``V`` enters the gradient by, ``-sqrt(beta)/sigma``."""
        least = self.gp.least_variance.clamp_min(_MIN_VARIANCE)
        sigma = variance.clamp_min(least).sqrt()
        return sigma, torch.where(variance > least, -self._width / sigma, 0.0)

    def _chunks(self, b: int, M: int) -> Iterator[tuple[slice, slice, list[Tensor]]]:
        """Rows and columns of the results, and buffers for them."""
        n = len(self._inputs)
        most = max(_LEAST_ROWS, min(_MOST_ROWS, _BUFFER_ELEMENTS // max(n, 1)))
        num = min(M, most)
        step = min(b, max(1, most // max(num, 1)))
        count = 3 if self.gp.root is None else 4
        storage = [self._inputs.new_empty(step * num * n) for _ in range(count)]
        for j in range(0, M, max(num, 1)):
            cols = slice(j, min(j + num, M))
            for i in range(0, b, max(step, 1)):
                rows = slice(i, min(i + step, b))
                shape = (rows.stop - i, cols.stop - j, n)
                yield rows, cols, [part[: _numel(shape)].view(shape) for part in storage]

    def _scaled(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Scaled decisions and contexts, by themselves, since every column is."""
        decision, context = self.columns.decision, self.columns.context
        Z = self.columns.join(X, contexts.new_zeros(1, len(context)))
        C = self.columns.join(X.new_zeros(1, len(decision)), contexts)
        return self.gp.scaled(Z)[:, decision], self.gp.scaled(C)[:, context]

    # ------------------------------------------------------------ one context per row

    @torch.no_grad()
    def _steepness(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """See `ContextualFunction._steepness`; second derivatives at ``b`` points."""
        split = X.shape[-1]
        points = torch.cat(self._scaled(X, contexts), dim=-1)
        k, slope, curvature = self.gp.profile.derivatives(squared_distances(points, self._inputs))
        V, reduction = self._solved(k, [torch.empty_like(k) for _ in range(2)], True)
        sigma, ratio = self._deviation(self.gp.variance - reduction)
        factors = self._weights + ratio.unsqueeze(-1) * V
        gradient = self._summed(points, 2.0 * factors * slope)[:, split:] * self._slope[split:]
        norm, direction = norm_and_direction(gradient)
        # The derivative in this direction, as a vector over training inputs, of k and of V.
        v = torch.nn.functional.pad(direction * self._slope[split:], (split, 0))
        along = torch.linalg.vecdot(points, v).unsqueeze(-1) - v @ self._inputs.mT
        dk = 2.0 * slope * along
        dV = self._solved(dk, [torch.empty_like(k) for _ in range(2)], True)[0]
        inner = torch.linalg.vecdot(V, dk) / sigma.square()
        weights = 4.0 * factors * curvature * along
        weights += 2.0 * slope * ratio.unsqueeze(-1) * (dV + inner.unsqueeze(-1) * V)
        total = self._summed(points, weights)
        # The direction itself has no decision columns: what factors * slope * v adds vanishes.
        return norm.to(X), (total * self._slope)[:, :split].to(X)

    def _summed(self, points: Tensor, factors: Tensor) -> Tensor:
        """``sum_i factors_i (s - s_i)`` for points ``b x d`` and factors ``b x n``."""
        return points * factors.sum(dim=-1, keepdim=True) - factors @ self._inputs


def squared_distances(A: Tensor, B: Tensor) -> Tensor:
    """Squared distances ``a x b`` of rows, accurate also where they are close."""
    return torch.cdist(A, B, compute_mode="donot_use_mm_for_euclid_dist").square_()


def _numel(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()


def confidence_bound(
    model: Any,
    columns: Columns,
    beta: Tensor,
    sign: float = 1.0,
    posterior_transform: PosteriorTransform | None = None,
) -> ContextualFunction:
    """The confidence bound of any model with one output, in closed form where there is one.

    Args:
        model: A model whose posterior has a mean and a variance.
        columns: Which columns of its inputs are contexts.
        beta: BoTorch's ``beta``, a scalar tensor.
        sign: 1 for an upper bound of the outcome, -1 for one of its negative.
        posterior_transform: Affine transform of the single outcome, if any.
    """
    if posterior_transform is None and is_stationary(model):
        return ClosedFormConfidenceBound(stationary_gp(model), columns, beta, sign)

    def bound(Z: Tensor) -> Tensor:
        posterior = model.posterior(Z, posterior_transform=posterior_transform)
        sigma: Tensor = posterior.variance.clamp_min(_MIN_VARIANCE).sqrt()
        return (sign * posterior.mean + beta.to(sigma).sqrt() * sigma).squeeze(-1).squeeze(-1)

    return PointwiseFunction(bound, columns, chunk=pairs_per_chunk(model))
