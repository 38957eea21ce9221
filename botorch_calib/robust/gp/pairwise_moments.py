"""Mean and variance of a Gaussian process at all pairs of decisions and contexts, with gradients.

`PointMoments` has one context per decision, and second derivatives along a direction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_calib.models.radial_kernels import RadialProfile
from botorch_calib.robust.contexts import pairwise_distances
from botorch_calib.robust.gp.stationary_gp import StationaryGP
from botorch_calib.robust.joint_inputs import Columns

# Pairs per chunk: few enough for the buffers to stay in the cache, where that is possible.
_BUFFER_ELEMENTS = 2**18
_LEAST_ROWS, _MOST_ROWS = 256, 1024
# On a device, whose launches have to be few, three or four buffers of half a gigabyte.
_DEVICE_ELEMENTS = 2**26


@dataclass(frozen=True, eq=False)
class Side:
    """Points ``m x d'`` in the unit of gradients, and prepared squared distances ``m x n``."""

    points: Tensor
    squares: Tensor

    def __getitem__(self, rows: slice) -> Side:
        return Side(self.points[rows], self.squares[rows])

    def __len__(self) -> int:
        return len(self.points)


class Moments(NamedTuple):
    """Mean and variance at ``b x M`` pairs, and sums over training inputs for their gradients.

    The sums, ``b x M x (d + 1)`` with that of the factors last, are of the mean and of minus half
    of the variance.
    """

    mean: Tensor
    variance: Tensor
    by_mean: Tensor | None
    by_variance: Tensor | None


class PairwiseMoments:
    r"""Mean and variance ``v`` of a `StationaryGP` at pairs, with gradients by joint inputs.

    With ``k`` the kernel's values between a pair and the training inputs ``z_i``, and ``V = P k``
    for the cached precision ``P``, the gradients of the mean and of ``v`` with respect to scaled
    inputs ``s`` are

        ``2 sum_i weights_i f'_i (s - s_i)`` and ``-4 sum_i V_i f'_i (s - s_i)``,

    where ``f'_i`` is the derivative of the kernel by the squared distance. So one product
    ``(b M x n)(n x n)`` gives values and gradients, in chunks that pass through a few buffers:
    Matern kernels take 1.4 times as long in new tensors. (If the training covariance is badly
    conditioned, the variance comes from a root of ``P``, and ``V`` by a second product.) Where the
    variance is at its least, it counts as constant. Gradients have decisions first; ``sign=-1`` is
    for the mean of ``-f``.
    """

    def __init__(self, gp: StationaryGP, columns: Columns, sign: float = 1.0) -> None:
        self.gp = gp
        self._decisions = _Part.of(gp, columns.decision)
        self._contexts = _Part.of(gp, columns.context)
        self._all = _Part.of(gp, columns.decision + columns.context)
        self._weights = sign * gp.weights
        # Numbers, which enter operations at less cost than tensors do.
        self._mean, self._variance = sign * float(gp.mean), float(gp.variance)
        self._least = float(gp.least_variance)
        # One product with this gives sums over training inputs, and the sum of the factors. It is
        # twice as fast with columns in one piece.
        units = (-self._all.inputs * self._all.unit).mT
        padded = torch.cat([units, torch.ones_like(units[:1])])
        self._padded, self._weighted = padded.mT, (padded * self._weights).mT

    def sides(self, X: Tensor, contexts: Tensor) -> tuple[Side, Side]:
        """Both sides of the pairs, from ``b x d_x`` and ``M x d_c``."""
        return self._decisions.side(X), self._contexts.side(contexts)

    def at_pairs(self, first: Side, second: Side, gradients: bool) -> Moments:
        """All pairs of two sides, chunk by chunk."""
        b, M = len(first), len(second)
        mean, variance = first.points.new_empty(2, b, M)
        width = self._padded.shape[-1] if gradients else 0
        by_mean, by_variance = first.points.new_empty(2, b, M, width)
        for rows, cols, buffers in self._chunks(b, M):
            squares = first.squares[rows, None], second.squares[None, cols]
            k, g = (part.flatten(0, 1) for part in self.gp.profile.fill(*squares, buffers))
            V, reduction = self._solved(k, [part.flatten(0, 1) for part in buffers[2:]], gradients)
            shape = mean[rows, cols].shape
            mean[rows, cols] = torch.mv(k, self._weights).view(shape)
            variance[rows, cols] = reduction.view(shape)
            if gradients:
                by_mean[rows, cols] = (g @ self._weighted).view(*shape, width)
                by_variance[rows, cols] = (V.mul_(g) @ self._padded).view(*shape, width)
        mean.add_(self._mean)
        variance.neg_().add_(self._variance).clamp_min_(self._least)
        if not gradients:
            return Moments(mean, variance, None, None)
        return Moments(mean, variance, by_mean, by_variance)

    def combined(
        self, moments: Moments, first: Side, second: Side, by_variance: Tensor, out: Tensor
    ) -> None:
        """Write gradients ``b x M x d`` of the mean plus a function of the variance to ``out``.

        ``by_variance`` are the function's derivatives, ``b x M``; ``moments`` are used up.
        """
        assert moments.by_mean is not None and moments.by_variance is not None
        split = first.points.shape[-1]
        factor = (by_variance * (moments.variance > self._least)).unsqueeze(-1)
        sums = moments.by_mean.addcmul_(factor, moments.by_variance, value=-2.0)
        total = sums[..., -1:]
        torch.addcmul(sums[..., :split], first.points[:, None], total, out=out[..., :split])
        torch.addcmul(sums[..., split:-1], second.points, total, out=out[..., split:])

    def _solved(
        self, k: Tensor, out: Sequence[Tensor | None], gradients: bool
    ) -> tuple[Tensor, Tensor]:
        """``k P``, if it is needed, in a buffer or a new tensor, and the diagonal of ``k P k'``."""
        root = self.gp.root
        if root is None:
            V = torch.mm(k, self.gp.precision, out=out[0])
            return V, torch.linalg.vecdot(k, V)
        W = torch.mm(k, root, out=out[1])
        V = torch.mm(W, root.mT, out=out[0]) if gradients else W
        return V, torch.linalg.vecdot(W, W)

    def _chunks(self, b: int, M: int) -> Iterator[tuple[slice, slice, list[Tensor]]]:
        """Rows and columns of the results, and buffers for them."""
        weights = self.gp.weights
        n, most = len(weights), rows_per_chunk(len(weights), weights.device)
        storage = weights.new_empty(3 if self.gp.root is None else 4, min(b * M, most) * n)
        for rows, cols in tiles(b, M, most):
            height, width = rows.stop - rows.start, cols.stop - cols.start
            buffers = storage[:, : height * width * n].view(-1, height, width, n)
            yield rows, cols, list(buffers.unbind())

    def at_points(self, X: Tensor, contexts: Tensor) -> PointMoments:
        """One context per decision, from ``b x d_x`` and ``b x d_c``."""
        return PointMoments(self, self._all.scaled(torch.cat([X, contexts.to(X)], dim=-1)))


class PointMoments:
    """Variance and gradients at scaled ``points``, ``b x d``, that change along a direction.

    At few decisions a robust bound, and a search, take 1.3 times as long if it is differentiated
    twice instead (``benchmarks/studies/simpler_forms_robust.py``).
    """

    def __init__(self, pairs: PairwiseMoments, points: Tensor) -> None:
        self._pairs, self._points = pairs, points
        squares = pairwise_distances(points, pairs._all.inputs).square_()
        k, self._slope, self._curvature = pairs.gp.profile.derivatives(squares)
        self._V, reduction = pairs._solved(k, [None, None], True)
        variance = pairs._variance - reduction
        self.variance = variance.clamp_min(pairs._least)
        # 1 where the variance is more than the least one, which is constant
        self._free = (variance > pairs._least).to(variance)

    def combined(self, by_variance: Tensor) -> Tensor:
        """Gradients ``b x d`` of the mean plus a function of the variance, by its derivatives."""
        return self._summed(self._factors(by_variance) * self._slope)

    def along(self, direction: Tensor) -> PointChanges:
        """Changes along context directions ``b x d_c``."""
        pairs = self._pairs
        # As a vector over training inputs, of k and of V.
        v = direction * pairs._contexts.slope
        # d s_i / d direction = 2 (s - s_i)' v for each training input i.
        along = torch.linalg.vecdot(self._points[:, -v.shape[-1] :], v).unsqueeze(-1)
        along = torch.addmm(along, v, pairs._contexts.inputs.mT, alpha=-2.0, beta=2.0)
        return PointChanges(self, along)

    def _factors(self, by_variance: Tensor) -> Tensor:
        """Derivatives by ``k``, ``b x n``: weights of the mean, and ``-2 V`` of the variance."""
        factor = (self._free * by_variance).unsqueeze(-1)
        return torch.addcmul(self._pairs._weights, factor, self._V, value=-2.0)

    def _summed(self, factors: Tensor) -> Tensor:
        """Gradients ``b x d``, ``2 sum_i factors_i (s - s_i)`` in the units of inputs."""
        sums = (factors / self._pairs.gp.profile.slope) @ self._pairs._padded
        return torch.addcmul(sums[:, :-1], self._points * self._pairs._all.unit, sums[:, -1:])


class PointChanges:
    """How the variance of `PointMoments`, and gradients, change with the squared distances."""

    def __init__(self, moments: PointMoments, along: Tensor) -> None:
        self._moments, self._along = moments, along
        dk = moments._slope * along
        self._dV = moments._pairs._solved(dk, [None, None], True)[0]
        self.variance = torch.linalg.vecdot(moments._V, dk).mul_(moments._free).mul_(-2.0)

    def combined(self, by_variance: Tensor, change: Tensor) -> Tensor:
        """Change of `PointMoments.combined`, ``b x d``, given that of ``by_variance``, ``b``."""
        at = self._moments
        factors = at._factors(by_variance).mul_(at._curvature).mul_(self._along)
        # The change of the factors; the weights in them stay.
        changes = (at._free * change).unsqueeze(-1) * at._V
        changes.addcmul_((at._free * by_variance).unsqueeze(-1), self._dV)
        # The direction itself has no decision columns, so the term factors * slope * v vanishes.
        return at._summed(factors.addcmul_(at._slope, changes, value=-2.0))


def rows_per_chunk(num: int, device: torch.device) -> int:
    """Pairs that pass through the buffers together, for ``num`` training points."""
    if device.type == "cpu":
        return max(_LEAST_ROWS, min(_MOST_ROWS, _BUFFER_ELEMENTS // max(num, 1)))
    return max(_LEAST_ROWS, _DEVICE_ELEMENTS // max(num, 1))


def tiles(b: int, M: int, most: int) -> Iterator[tuple[slice, slice]]:
    """Rows and columns of ``b x M`` pairs, at most so many at a time, whole rows if possible."""
    num = max(min(M, most), 1)
    step = max(min(b, most // num), 1)
    for j in range(0, M, num):
        for i in range(0, b, step):
            yield slice(i, min(i + step, b)), slice(j, min(j + num, M))


@dataclass(frozen=True, eq=False)
class _Part:
    """Some columns of a `StationaryGP`'s inputs, which are scaled by themselves.

    ``origin`` is subtracted and ``slope`` then multiplied by; ``unit`` is what scaled differences
    are multiplied by in gradients; ``inputs`` are the scaled training inputs, ``n x d'``.
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

    def side(self, points: Tensor) -> Side:
        """Points ``m x d'`` by themselves."""
        scaled = self.scaled(points)
        squares = pairwise_distances(scaled, self.inputs).square_()
        return Side(scaled * self.unit, self.profile.prepare(squares))
