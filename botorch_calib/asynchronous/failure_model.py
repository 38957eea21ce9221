"""A model of failures: where queries bring values."""

from __future__ import annotations

import math

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from botorch_calib.asynchronous.failing_borders import are_near
from botorch_calib.robust.contexts import pairwise_distances

# Lengthscales to choose from, in units of the box, times the square root of the dimension.
LENGTHSCALES = (0.1, 0.2, 0.4, 0.8)

# Variance of a label about the model, in units of its prior variance: neighbours may differ.
NOISE = 1e-2

# Width of the step from predicted failure to predicted success.
WIDTH = 0.1

# After so many lost evaluations the threshold of the prediction is half way from 1/2 to 1.
CAUTION = 4.0

# Rows that the factors gain at a time.
BLOCK = 32


class GrowingFactors:
    """Inverse Cholesky factors of the labels' correlations at all `LENGTHSCALES`, which grow.

    A row depends on earlier points alone, so full blocks of rows are kept while these stay: a
    further label takes 8 ms instead of 165 ms after 1000, and no bit of the result changes. As the
    condition number is below ``n / NOISE``, inverses cost no digits.
    """

    def __init__(self) -> None:
        # Replaced at once and changed nowhere, as threads may share a proposer.
        self._kept: tuple[Tensor, list[Tensor]] | None = None

    def blocks(self, X: Tensor) -> list[Tensor]:
        """The factors for ``n x d`` points of the unit cube: ``num_lengthscales x k x end`` each.

        A block holds `BLOCK` rows, the last one fewer, and is as wide as its last row is long.
        """
        known, kept = (X[:0], []) if self._kept is None else self._kept
        num = min(len(X), len(known))
        same = (X[:num] == known[:num]).all(dim=-1).long().cumprod(dim=0).sum()
        blocks = kept[: int(same) // BLOCK]
        for start in range(BLOCK * len(blocks), len(X), BLOCK):
            blocks.append(_next_rows(blocks, X[: start + BLOCK], start))
        self._kept = X, blocks
        return blocks


def _next_rows(blocks: list[Tensor], X: Tensor, start: int) -> Tensor:
    """Rows from ``start`` on of the inverse factors for points ``X``, after those in ``blocks``.

    The root gains the rows ``[V', C]`` with ``V = L^{-1} B'`` and ``C C' = D - V' V``, for rows
    ``[B, D]`` of the correlations; its inverse gains ``[-C^{-1} V' L^{-1}, C^{-1}]``.
    """
    rows = _matern(pairwise_distances(X[start:], X) / _lengthscales(X).view(-1, 1, 1))
    cross, corner = rows[..., :start], rows[..., start:]
    corner.diagonal(dim1=-2, dim2=-1).add_(NOISE)
    known = [cross[..., : block.shape[-1]] @ block.mT for block in blocks]
    V = torch.cat([cross[..., :0], *known], dim=-1).mT
    C = torch.linalg.cholesky(corner - V.mT @ V)
    inverse = torch.linalg.solve_triangular(C, torch.eye(C.shape[-1]).to(C), upper=False)
    return torch.cat([_transposed_times(blocks, -V @ inverse.mT).mT, inverse], dim=-1)


def _transposed_times(blocks: list[Tensor], values: Tensor) -> Tensor:
    """``L^{-T} v`` for the inverse factors in ``blocks`` and values ``... x n x k``."""
    result = torch.zeros_like(values)
    for block in blocks:
        end = block.shape[-1]
        result[..., :end, :] += block.mT @ values[..., end - block.shape[-2] : end, :]
    return result


def _lengthscales(X: Tensor) -> Tensor:
    return X.new_tensor(LENGTHSCALES) * math.sqrt(X.shape[-1])


class Feasibility:
    r"""Predicts from values and failures whether a query brings a value.

    The label of a query is 1 if its value has arrived and 0 if it has failed. Labels are modeled by
    a Gaussian process with mean 1 (untried queries succeed) and an isotropic Matern-5/2 kernel over
    the unit cube, with the lengthscale of `LENGTHSCALES` that maximizes the likelihood. With the
    labels less 1 as ``r``, ``K`` their correlation matrix with `NOISE` on its diagonal, and
    ``k(x)`` the correlations with ``x``, the prediction is ``p(x) = 1 + k(x)' K^{-1} r``. The
    variance that maximizes the likelihood is ``r'K^{-1}r / n``, and the log likelihood then is, up
    to a constant, ``-n/2 log(r'K^{-1}r / n) - 1/2 log det K``.

    ``p`` comes near 1/2 half way between a value and a failure. The score of a query is

        ``Phi((p(x) - t) / 0.1)``  with  ``t = 1 - 1 / (2 (1 + F / 4))``

    after failures that cost ``F`` evaluations. At first the search halves the distance to a region
    that fails again and again, as the best point may lie on its border; the more has been lost, the
    closer to known values it stays.

    Of the queries ``X``, ``n x d``, at least one ``failed``: ``n`` booleans, or degrees from 0 to
    1. They cost the search so many evaluations (default: one each). The ``factors`` are those for
    earlier labels, the first of ``X``, and grow by the others.
    """

    def __init__(
        self,
        X: Tensor,
        failed: Tensor,
        bounds: Tensor,
        cost: float | None = None,
        factors: GrowingFactors | None = None,
    ) -> None:
        self.bounds = bounds
        self.X = self._in_unit_cube(X)
        self.failures = self.X[failed.to(self.X) == 1.0]
        cost = float(failed.sum()) if cost is None else cost
        self.threshold = 1.0 - 0.5 / (1.0 + cost / CAUTION)
        residuals = -failed.to(self.X).unsqueeze(-1)
        blocks = (GrowingFactors() if factors is None else factors).blocks(self.X)
        whitened = torch.cat([block @ residuals[: block.shape[-1]] for block in blocks], dim=-2)
        variances = whitened.square().mean(dim=(-2, -1))
        log_roots = -sum(
            block.diagonal(block.shape[-1] - block.shape[-2], -2, -1).log().sum(dim=-1)
            for block in blocks
        )
        best = int((-0.5 * len(X) * variances.log() - log_roots).argmax())
        self.lengthscale = float(_lengthscales(X)[best])
        self.weights = _transposed_times([block[best] for block in blocks], whitened[best])

    def _in_unit_cube(self, X: Tensor) -> Tensor:
        return (X - self.bounds[0]) / (self.bounds[1] - self.bounds[0])

    def predict(self, X: Tensor) -> Tensor:
        """The predicted label at ``X``, ``batch_shape x d``, of shape ``batch_shape``."""
        X = self._in_unit_cube(X.to(self.bounds))
        k = _matern(pairwise_distances(X, self.X) / self.lengthscale)
        return 1.0 + (k @ self.weights).squeeze(-1)

    def score(self, X: Tensor) -> Tensor:
        """The score of ``X``, ``batch_shape x d``: the share of a gain that counts, from 0 to 1."""
        return torch.special.ndtr((self.predict(X) - self.threshold) / WIDTH)

    def are_at_border(self, X: Tensor) -> Tensor:
        """Which of the points ``n x d`` are at the border of a failure."""
        return are_near(self._in_unit_cube(X), self.failures).any(dim=-1)

    def safest(self, X: Tensor) -> Tensor:
        """The one of the points ``n x d`` that is the most likely to bring a value, ``d``.

        Points at the border of a failure are passed over if there is another one.
        """
        near = self.are_at_border(X)
        return X[self.predict(X).masked_fill(near & ~near.all(), -math.inf).argmax()]


class FeasibleAcquisition(AcquisitionFunction):
    """An acquisition function for which a query that fails is as good as a ``poor`` value.

    An acquisition value ``a > poor`` becomes ``poor + s (a - poor)``, with the score ``s``.
    """

    def __init__(
        self, acqf: AcquisitionFunction, model: Model, feasibility: Feasibility, poor: float
    ) -> None:
        super().__init__(model=model)
        self.acqf = acqf
        self.feasibility = feasibility
        self.poor = poor

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        values: Tensor = self.acqf(X)
        gains = values - self.poor
        scores = self.feasibility.score(X.squeeze(-2)).to(values)
        return self.poor + torch.where(gains > 0.0, scores * gains, gains)


def _matern(distances: Tensor) -> Tensor:
    """Matern-5/2 correlations at distances in units of the lengthscale."""
    scaled = math.sqrt(5.0) * distances
    return (1.0 + scaled + scaled.square() / 3.0) * (-scaled).exp()
