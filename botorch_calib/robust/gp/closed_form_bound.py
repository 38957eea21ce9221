"""Upper confidence bounds of all pairs of decisions and contexts, and their context gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from botorch.acquisition.objective import PosteriorTransform
from torch import Tensor

from botorch_calib.posteriors.calibrated import MIN_VARIANCE
from botorch_calib.robust.contexts import pairwise_distances
from botorch_calib.robust.contextual_function import ContextualFunction, norm_and_direction
from botorch_calib.robust.gp.autograd_fallback import PointwiseFunction, pairs_per_chunk
from botorch_calib.robust.gp.radial_kernels import RadialProfile
from botorch_calib.robust.gp.stationary_gp import StationaryGP, is_stationary, stationary_gp
from botorch_calib.robust.joint_inputs import Columns

# Pairs per chunk: few enough for the buffers to stay in the cache, where that is possible.
_BUFFER_ELEMENTS = 2**18
_LEAST_ROWS, _MOST_ROWS = 256, 1024
# On a device, whose launches have to be few, three or four buffers of half a gigabyte.
_DEVICE_ELEMENTS = 2**26


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
        gp: The posterior, made by `stationary_gp`.
        columns: Which columns are contexts.
        beta: BoTorch's ``beta``, which is under the root, as a scalar tensor.
        sign: 1 for an upper bound of ``f``, -1 for one of ``-f``.
    """

    def __init__(self, gp: StationaryGP, columns: Columns, beta: Tensor, sign: float = 1.0) -> None:
        self.gp = gp
        self._decisions = _Part.of(gp, columns.decision)
        self._contexts = _Part.of(gp, columns.context)
        self._all = _Part.of(gp, columns.decision + columns.context)
        self._kept: tuple[tuple[Tensor, Tensor, tuple[Tensor, Tensor]], ...] = ()
        self._weights = sign * gp.weights
        # Numbers, which enter operations at less cost than tensors do.
        self._width = float(beta.double().sqrt())
        self._mean = sign * float(gp.mean)
        self._variance = float(gp.variance)
        self._least = max(float(gp.least_variance), MIN_VARIANCE)
        # One product with this gives sums over training inputs, and the sum of the factors. It is
        # twice as fast with columns in one piece.
        units = (-self._all.inputs * self._all.unit).mT
        self._padded = torch.cat([units, torch.ones_like(units[:1])]).mT

    @staticmethod
    def supports(model: Any) -> bool:
        """Whether a model is of a kind that has a closed form; see `stationary_gp`."""
        return is_stationary(model)

    # ------------------------------------------------------------ all pairs

    @torch.no_grad()
    def _evaluate(self, X: Tensor, contexts: Tensor, gradients: bool) -> tuple[Tensor, Tensor]:
        """Values and gradients at all pairs, chunk by chunk."""
        split = X.shape[-1]
        left, first = self._decisions.side(X)
        right, second = self._context_side(contexts)
        values = first.new_empty(len(first), len(second))
        width = self._all.inputs.shape[-1] if gradients else 0
        results = first.new_empty(len(first), len(second), width)
        for rows, cols, buffers in self._chunks(len(first), len(second)):
            value, sums = self._chunk(first[rows, None], second[None, cols], buffers, gradients)
            values[rows, cols] = value
            if gradients:
                part, total = results[rows, cols], sums[..., -1:]
                torch.addcmul(sums[..., :split], left[rows, None], total, out=part[..., :split])
                torch.addcmul(sums[..., split:-1], right[cols], total, out=part[..., split:])
        return values.to(X), results.to(X)

    def _context_side(self, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """`_Part.side` of contexts, which is kept, as they are mostly those of the last calls."""
        contexts = contexts.to(self._weights)
        constant = self._is_constant(contexts)
        for source, kept, side in self._kept:
            # Compared by value only where that is necessary, as it waits for the device.
            if (constant and source is contexts) or torch.equal(kept, contexts):
                return side
        side = self._contexts.side(contexts)
        # A copy: whoever owns the contexts may change them. Two are kept, for the expectation and
        # for the steepness.
        self._kept = ((contexts, contexts.clone(), side), *self._kept[:1])
        return side

    def _chunk(
        self, first: Tensor, second: Tensor, buffers: list[Tensor], gradients: bool
    ) -> tuple[Tensor, Tensor]:
        """Values ``step x M'``, and sums ``step x M' x (d + 1)`` over training inputs."""
        shape = (first.shape[0], second.shape[1])
        k, g = (part.flatten(0, 1) for part in self.gp.profile.fill(first, second, buffers))
        spare = [part.flatten(0, 1) for part in buffers[2:]]
        V, reduction = self._solved(k, spare, gradients)
        sigma, ratio = self._deviation(reduction)
        value = torch.addmv(sigma, k, self._weights, beta=self._width).add_(self._mean)
        if not gradients:
            return value.view(shape), value
        V.mul_(ratio.unsqueeze(-1)).add_(self._weights).mul_(g)
        return value.view(shape), (V @ self._padded).view(*shape, -1)

    def _solved(
        self, k: Tensor, out: Sequence[Tensor | None], gradients: bool
    ) -> tuple[Tensor, Tensor]:
        """``k P``, unless it is not needed, in the first buffer, and the diagonal of ``k P k'``.

        None stands for a new buffer.
        """
        root = self.gp.root
        if root is None:
            V = torch.mm(k, self.gp.precision, out=out[0])
            return V, torch.linalg.vecdot(k, V)
        W = torch.mm(k, root, out=out[1])
        V = torch.mm(W, root.mT, out=out[0]) if gradients else W
        return V, torch.linalg.vecdot(W, W)

    def _deviation(self, reduction: Tensor) -> tuple[Tensor, Tensor]:
        """``sigma``, and what ``V`` enters the gradient by, ``-sqrt(beta)/sigma``."""
        variance = self._variance - reduction
        sigma = variance.clamp_min(self._least).sqrt_()
        return sigma, torch.where(variance > self._least, -self._width / sigma, 0.0)

    def _chunks(self, b: int, M: int) -> Iterator[tuple[slice, slice, list[Tensor]]]:
        """Rows and columns of the results, and buffers for them."""
        n = len(self._weights)
        most = rows_per_chunk(n, self._weights.device)
        num = min(M, most)
        step = min(b, max(1, most // max(num, 1)))
        storage = self._weights.new_empty(3 if self.gp.root is None else 4, step * num * n)
        for j in range(0, M, max(num, 1)):
            cols = slice(j, min(j + num, M))
            for i in range(0, b, max(step, 1)):
                rows = slice(i, min(i + step, b))
                height, width = rows.stop - i, cols.stop - j
                buffers = storage[:, : height * width * n].view(-1, height, width, n)
                yield rows, cols, list(buffers.unbind())

    # ------------------------------------------------------------ one context per row

    @torch.no_grad()
    def _gradient_norm(self, X: Tensor, contexts: Tensor) -> tuple[Tensor, Tensor]:
        """Norms of the context gradient at ``b`` points, and their slopes by second derivatives."""
        split = X.shape[-1]
        points = self._all.scaled(torch.cat([X, contexts.to(X)], dim=-1))
        squares = pairwise_distances(points, self._all.inputs).square_()
        k, slope, curvature = self.gp.profile.derivatives(squares)
        V, reduction = self._solved(k, [None, None], True)
        sigma, ratio = self._deviation(reduction)
        ratio = ratio.unsqueeze(-1)
        factors = torch.addcmul(self._weights, ratio, V)
        norm, direction = norm_and_direction(self._summed(points, factors * slope)[:, split:])
        # The derivative in this direction, as a vector over training inputs, of k and of V.
        v = direction * self._contexts.slope
        # d s_i / d direction = 2 (s - s_i)' v for each training input i.
        along = torch.linalg.vecdot(points[:, split:], v).unsqueeze(-1)
        along = torch.addmm(along, v, self._contexts.inputs.mT, alpha=-2.0, beta=2.0)
        dk = slope * along
        dV = self._solved(dk, [None, None], True)[0]
        # The chain rule on 1 / sigma: d(V / sigma) = (dV + V (V dk) / sigma^2) / sigma, since
        # d sigma = -(V dk) / sigma.
        inner = torch.linalg.vecdot(V, dk).div_(sigma.square_()).unsqueeze(-1)
        factors.mul_(curvature).mul_(along)
        factors.addcmul_(slope, dV.addcmul_(inner, V).mul_(ratio))
        # The direction itself has no decision columns: what factors * slope * v adds vanishes.
        return norm.to(X), self._summed(points, factors)[:, :split].to(X)

    def _summed(self, points: Tensor, factors: Tensor) -> Tensor:
        """Gradients ``b x d``, ``2 sum_i factors_i (s - s_i)`` in the units of inputs."""
        sums = (factors / self.gp.profile.slope) @ self._padded
        return torch.addcmul(sums[:, :-1], points * self._all.unit, sums[:, -1:])


def rows_per_chunk(num: int, device: torch.device) -> int:
    """Pairs that pass through the buffers together, for ``num`` training points."""
    if device.type == "cpu":
        return max(_LEAST_ROWS, min(_MOST_ROWS, _BUFFER_ELEMENTS // max(num, 1)))
    return max(_LEAST_ROWS, _DEVICE_ELEMENTS // max(num, 1))


@dataclass(frozen=True, eq=False)
class _Part:
    """Some columns of a `StationaryGP`'s inputs, which are scaled by themselves.

    Attributes:
        profile: The kernel.
        origin: What is subtracted from these columns, ``d'``.
        slope: What the differences are then multiplied by, ``d'``.
        unit: What scaled differences are multiplied by in gradients, ``d'``.
        inputs: Scaled training inputs, ``n x d'``.
    """

    profile: RadialProfile
    origin: Tensor
    slope: Tensor
    unit: Tensor
    inputs: Tensor

    @classmethod
    def of(cls, gp: StationaryGP, columns: list[int]) -> _Part:
        """These columns, in this order."""
        slope = gp.slope[columns]
        inputs = gp.inputs[:, columns].contiguous()
        return cls(gp.profile, gp.origin[columns], slope, 2.0 * gp.profile.slope * slope, inputs)

    def scaled(self, points: Tensor) -> Tensor:
        """Scaled points ``m x d'``."""
        return (points.to(self.inputs) - self.origin) * self.slope

    def side(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Points ``m x d'`` in the unit of gradients, and prepared squared distances ``m x n``."""
        scaled = self.scaled(points)
        squares = pairwise_distances(scaled, self.inputs).square_()
        return scaled * self.unit, self.profile.prepare(squares)


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
        sigma: Tensor = posterior.variance.clamp_min(MIN_VARIANCE).sqrt()
        return (sign * posterior.mean + beta.to(sigma).sqrt() * sigma).squeeze(-1).squeeze(-1)

    return PointwiseFunction(bound, columns, chunk=pairs_per_chunk(model))
