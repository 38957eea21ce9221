"""Mean and variance of a Gaussian process at pairs of decisions and contexts, with gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from botorch_calib.robust.contexts import pairwise_distances
from botorch_calib.robust.gp.stationary_gp import StationaryGP
from botorch_calib.robust.joint_inputs import Columns

# Pairs per chunk: few enough for the buffers to stay in the cache, where that is possible.
_BUFFER_ELEMENTS = 2**18
_LEAST_ROWS, _MOST_ROWS = 256, 1024
# On a device, whose launches have to be few, three or four buffers of half a gigabyte.
_DEVICE_ELEMENTS = 2**26


class Side(NamedTuple):
    """Points ``m x d'`` in the unit of gradients, and prepared squared distances ``m x n``."""

    points: Tensor
    squares: Tensor


class Moments(NamedTuple):
    """Mean and variance at ``b x M`` pairs, and sums over training inputs for their gradients.

    The sums, ``b x M x (d + 1)`` with that of the factors last, are of the mean and of minus half
    of the variance; without gradients they have no columns.
    """

    mean: Tensor
    variance: Tensor
    by_mean: Tensor
    by_variance: Tensor


class _Part(NamedTuple):
    """Training inputs ``n x d'`` and what else concerns these columns, ``d'``."""

    inputs: Tensor
    origin: Tensor
    slope: Tensor
    unit: Tensor


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
    variance is at its least, it counts as constant. Columns, and so gradients, have decisions
    first; ``sign=-1`` is for the mean of ``-f``.
    """

    def __init__(self, gp: StationaryGP, columns: Columns, sign: float = 1.0) -> None:
        self.gp = gp = gp.reordered(columns.decision + columns.context)
        self._split = split = len(columns.decision)
        self._weights = sign * gp.weights
        self._mean, self._variance, self._least = sign * gp.mean, gp.variance, gp.least_variance
        # What scaled differences are multiplied by in gradients
        self._unit = 2.0 * gp.profile.slope * gp.slope
        every = gp.inputs, gp.origin, gp.slope, self._unit
        self._decisions = _Part(*(each[..., :split].contiguous() for each in every))
        self._contexts = _Part(*(each[..., split:].contiguous() for each in every))
        # One product with this gives sums over training inputs, and the sum of the factors. It is
        # twice as fast with columns in one piece.
        units = (-gp.inputs * self._unit).mT
        padded = torch.cat([units, torch.ones_like(units[:1])])
        self._padded, self._weighted = padded.mT, (padded * self._weights).mT

    def sides(self, X: Tensor, contexts: Tensor) -> tuple[Side, Side]:
        """Both sides of the pairs, from ``b x d_x`` and ``M x d_c``."""
        return self._side(X, self._decisions), self._side(contexts, self._contexts)

    def _side(self, points: Tensor, part: _Part) -> Side:
        scaled = (points.to(part.inputs) - part.origin) * part.slope
        squares = pairwise_distances(scaled, part.inputs).square_()
        return Side(scaled * part.unit, self.gp.profile.prepare(squares))

    def at_pairs(self, first: Side, second: Side, gradients: bool) -> Moments:
        """All pairs of two sides, chunk by chunk."""
        b, M = len(first.points), len(second.points)
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
        return Moments(mean, variance, by_mean, by_variance)

    def combined(
        self, moments: Moments, first: Side, second: Side, by_variance: Tensor, out: Tensor
    ) -> None:
        """Write gradients ``b x M x d`` of the mean plus a function of the variance to ``out``.

        ``by_variance`` are the function's derivatives, ``b x M``; ``moments`` are used up.
        """
        split = self._split
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
        """Rows and columns of the results, whole rows if possible, and buffers for them."""
        weights = self.gp.weights
        n, most = len(weights), rows_per_chunk(len(weights), weights.device)
        width = max(min(M, most), 1)
        height = max(min(b, most // width), 1)
        storage = weights.new_empty(3 if self.gp.root is None else 4, height * width * n)
        for j, i in product(range(0, M, width), range(0, b, height)):
            rows, cols = slice(i, min(i + height, b)), slice(j, min(j + width, M))
            shape = rows.stop - i, cols.stop - j, n
            buffers = storage[:, : math.prod(shape)].view(-1, *shape)
            yield rows, cols, list(buffers.unbind())

    def at_points(self, points: Tensor) -> PointMoments:
        """At points ``b x d``, decisions first."""
        return PointMoments(self, self.gp.scaled(points))


class PointMoments:
    """Variance and gradients at ``scaled`` points, ``b x d``, that change along a direction.

    At few decisions a robust bound, and a search, take 1.3 times as long if it is differentiated
    twice instead (``benchmarks/studies/simpler_forms_robust.py``), and 1.2 times if the gradients
    below are differentiated.
    """

    def __init__(self, pairs: PairwiseMoments, scaled: Tensor) -> None:
        self._pairs, self._scaled = pairs, scaled
        squares = pairwise_distances(scaled, pairs.gp.inputs).square_()
        k, self._g, self._slope_of_g = pairs.gp.profile.derivatives(squares)
        self._V, reduction = pairs._solved(k, [None, None], True)
        variance = pairs._variance - reduction
        self.variance = variance.clamp_min(pairs._least)
        # 1 where the variance is more than the least one, which is constant
        self._free = (variance > pairs._least).to(variance)

    def gradients(self, by_variance: Tensor) -> Tensor:
        """Those of the mean plus a function of the variance, ``b x d``, by its derivatives."""
        return self._summed(self._factors(by_variance) * self._g)

    def along(self, direction: Tensor) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
        """Change of the variance, ``b``, along context directions ``b x d_c``; that of `gradients`.

        The latter is a function of the derivatives ``by_variance`` and of their change.
        """
        pairs = self._pairs
        # As a vector over training inputs, of k and of V.
        v = direction * pairs._contexts.slope
        # d s_i / d direction = 2 (s - s_i)' v for each training input i.
        along = torch.linalg.vecdot(self._scaled[:, -v.shape[-1] :], v).unsqueeze(-1)
        along = torch.addmm(along, v, pairs._contexts.inputs.mT, alpha=-2.0, beta=2.0)
        dk = (pairs.gp.profile.slope * self._g).mul_(along)
        dV = pairs._solved(dk, [None, None], True)[0]

        def changed(by_variance: Tensor, change: Tensor) -> Tensor:
            factors = self._factors(by_variance).mul_(self._slope_of_g).mul_(along)
            # The change of the factors; the weights in them stay.
            changes = (self._free * change).unsqueeze(-1) * self._V
            changes.addcmul_((self._free * by_variance).unsqueeze(-1), dV)
            # The direction has no decision columns, so the term factors * g * v vanishes.
            return self._summed(factors.addcmul_(self._g, changes, value=-2.0))

        return torch.linalg.vecdot(self._V, dk).mul_(self._free).mul_(-2.0), changed

    def _factors(self, by_variance: Tensor) -> Tensor:
        """Derivatives by ``k``, ``b x n``: weights of the mean, and ``-2 V`` of the variance."""
        factor = (self._free * by_variance).unsqueeze(-1)
        return torch.addcmul(self._pairs._weights, factor, self._V, value=-2.0)

    def _summed(self, factors: Tensor) -> Tensor:
        """Gradients ``b x d``, ``2 slope sum_i factors_i (s - s_i)`` in the units of inputs."""
        sums = factors @ self._pairs._padded
        return torch.addcmul(sums[:, :-1], self._scaled * self._pairs._unit, sums[:, -1:])


def rows_per_chunk(num: int, device: torch.device) -> int:
    """Pairs that pass through the buffers together, for ``num`` training points."""
    if device.type == "cpu":
        return max(_LEAST_ROWS, min(_MOST_ROWS, _BUFFER_ELEMENTS // max(num, 1)))
    return max(_LEAST_ROWS, _DEVICE_ELEMENTS // max(num, 1))
