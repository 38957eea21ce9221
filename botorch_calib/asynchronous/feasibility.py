"""Where queries bring values: a model of failures beside that of the objective."""

from __future__ import annotations

import math

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

# Lengthscales that are compared, in units of the box, times the square root of the dimension.
LENGTHSCALES = (0.1, 0.2, 0.4, 0.8)

# Variance of a label about the model, in units of its prior variance: neighbours may differ.
NOISE = 1e-2

# How sharply what is predicted to succeed is told from what is predicted to fail.
WIDTH = 0.1

# After so many lost evaluations the share of success that is asked for is half way from 1/2 to 1.
CAUTION = 4.0

# Rows of a Cholesky factor that are computed at a time.
BLOCK = 32


class GrowingRoots:
    """Cholesky factors of the correlations of labels at all `LENGTHSCALES`, which grow with them.

    A proposer asks again after each query, with the labels of before and few new ones. A row of a
    factor depends on earlier points alone, so full blocks of rows are kept as long as these stay
    what they were: further labels then cost ``O(n^2)`` instead of ``O(n^3)``. Where blocks begin
    does not depend on what is kept, and nor does the result, to the last bit: a run that is resumed
    continues as if it had not been interrupted. Half a matrix is kept for each lengthscale.
    """

    def __init__(self) -> None:
        # One attribute, read once and replaced at once, as threads may share a proposer.
        self._kept: tuple[Tensor, list[Tensor]] | None = None

    def blocks(self, X: Tensor) -> list[Tensor]:
        """The factors' rows, `BLOCK` of them at a time, each as long as its last row.

        Args:
            X: Points in the unit cube, ``n x d``, in the order of the factors' rows.

        Returns:
            Blocks ``num_lengthscales x k x (start + k)``, where ``start`` rows come before.
        """
        blocks = self._known(X)
        for start in range(len(blocks) * BLOCK, len(X), BLOCK):
            blocks.append(_next_rows(blocks, X[: start + BLOCK], start))
        # The last rows are computed anew: a block that grows would not be what one piece gives.
        self._kept = X, blocks[: len(X) // BLOCK]
        return blocks

    def _known(self, X: Tensor) -> list[Tensor]:
        """The kept blocks whose points, and those before, are the first ones of ``X``."""
        kept = self._kept
        if kept is None or kept[0].shape[-1] != X.shape[-1]:
            return []
        known, blocks = kept
        num = min(len(X), len(known))
        changed = (X[:num] != known[:num]).any(dim=-1).nonzero()
        same = int(changed[0]) if len(changed) else num
        return blocks[: same // BLOCK]


def _next_rows(blocks: list[Tensor], X: Tensor, start: int) -> Tensor:
    """Rows from ``start`` on of the factors for the points ``X``, after those in ``blocks``."""
    lengthscales = _lengthscales(X).view(-1, 1, 1)
    rows = _matern(_distances(X[start:], X) / lengthscales)
    for first, block in zip(range(0, start, BLOCK), blocks, strict=True):
        last = first + BLOCK
        known = rows[..., :first] @ block[..., :first].mT
        rows[..., first:last] = torch.linalg.solve_triangular(
            block[..., first:].mT, rows[..., first:last] - known, upper=True, left=False
        )
    cross, corner = rows[..., :start], rows[..., start:]
    noise = NOISE * torch.eye(corner.shape[-1]).to(corner)
    rows[..., start:] = torch.linalg.cholesky(corner + noise - cross @ cross.mT)
    return rows


def _lengthscales(X: Tensor) -> Tensor:
    return X.new_tensor(LENGTHSCALES) * math.sqrt(X.shape[-1])


class Feasibility:
    r"""Predicts from values and failures whether a query brings a value.

    Labels are 1 where a value has arrived and 0 where the query has failed. Their model is a
    Gaussian process with mean 1 (what nobody has tried succeeds) and an isotropic Matern-5/2 kernel
    over the unit cube, with the lengthscale of `LENGTHSCALES` at which the likelihood is greatest,
    the variance being chosen for each. With the labels less 1 as ``r``, ``K`` their correlation
    matrix with `NOISE` on its diagonal, and ``k(x)`` the correlations with ``x``, the prediction is
    ``p(x) = 1 + k(x)' K^{-1} r``. The variance that maximizes the likelihood is ``r'K^{-1}r / n``,
    and the log likelihood then is, up to a constant, ``-n/2 log(r'K^{-1}r / n) - 1/2 log det K``.

    A Gaussian process of labels needs no iterations, and ``p`` comes near 1/2 half way between a
    value and a failure. The score of a query is

        ``Phi((p(x) - t) / 0.1)``  with  ``t = 1 - 1 / (2 (1 + F / 4))``

    after failures that cost ``F`` evaluations. At first the border of a region that fails is halved
    again and again, as its best point may lie there; the more has been lost, the closer to known
    values the search stays.

    Args:
        X: Queries that brought values or failed, ``n x d``, in an order in which later ones come
            last, for the sake of ``roots``.
        failed: Which of them failed, ``n`` booleans, at least one of them True; or how far they are
            taken to have failed, from 0 to 1.
        bounds: The box, ``2 x d``.
        roots: The factors of earlier labels; they grow by these.
        cost: How many evaluations have been lost by failures (default: one by each). A query that
            hangs may cost many, and then it takes fewer of them to make the search cautious.
    """

    def __init__(
        self,
        X: Tensor,
        failed: Tensor,
        bounds: Tensor,
        roots: GrowingRoots | None = None,
        cost: float | None = None,
    ) -> None:
        self.bounds = bounds
        self.X = self._in_unit_cube(X)
        cost = float(failed.sum()) if cost is None else cost
        self.threshold = 1.0 - 0.5 / (1.0 + cost / CAUTION)
        blocks = (GrowingRoots() if roots is None else roots).blocks(self.X)
        residuals = -failed.to(self.X).unsqueeze(-1)
        whitened = _whitened(blocks, residuals)
        variances = whitened.square().mean(dim=(-2, -1))
        log_roots = sum(
            block[..., -block.shape[-2] :].diagonal(dim1=-2, dim2=-1).log().sum(dim=-1)
            for block in blocks
        )
        best = int((-0.5 * len(X) * variances.log() - log_roots).argmax())
        self.lengthscale = float(_lengthscales(X)[best])
        self.weights = _back_substituted([block[best] for block in blocks], whitened[best])

    def _in_unit_cube(self, X: Tensor) -> Tensor:
        return (X - self.bounds[0]) / (self.bounds[1] - self.bounds[0])

    def predict(self, X: Tensor) -> Tensor:
        """The predicted label at ``X``, ``batch_shape x d``: about 1 or 0, of shape batch_shape."""
        X = self._in_unit_cube(X.to(self.bounds))
        k = _matern(_distances(X, self.X) / self.lengthscale)
        return 1.0 + (k @ self.weights).squeeze(-1)

    def score(self, X: Tensor) -> Tensor:
        """How far to rely on a value at ``X``, ``batch_shape x d``: from 0 to 1."""
        return torch.special.ndtr((self.predict(X) - self.threshold) / WIDTH)


class FeasibleAcquisition(AcquisitionFunction):
    """An acquisition function in units of the outcome that counts where queries bring values.

    A query that fails is as good as a poor value. With the score ``s`` of its success and the
    acquisition value ``a``, the result is ``poor + s (a - poor)`` if ``a`` is better than poor,
    and ``a`` otherwise.

    Args:
        acqf: Values of points ``b x 1 x d``, in units of the outcome, the greater the better.
        model: Its model.
        feasibility: Where queries bring values.
        poor: A poor value, in the same sense.
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
        """Evaluate it.

        Args:
            X: ``b x 1 x d``.

        Returns:
            Values of shape ``b``.
        """
        values: Tensor = self.acqf(X)
        gains = values - self.poor
        scores = self.feasibility.score(X.squeeze(-2)).to(values)
        return self.poor + torch.where(gains > 0.0, scores * gains, gains)


def _whitened(blocks: list[Tensor], residuals: Tensor) -> Tensor:
    """``L^{-1} r`` at all lengthscales, ``num_lengthscales x n x 1``, for residuals ``n x 1``."""
    solved = residuals.expand(len(LENGTHSCALES), -1, -1).clone()
    for block in blocks:
        end = block.shape[-1]
        start = end - block.shape[-2]
        known = block[..., :start] @ solved[:, :start]
        solved[:, start:end] = torch.linalg.solve_triangular(
            block[..., start:], solved[:, start:end] - known, upper=False
        )
    return solved


def _back_substituted(blocks: list[Tensor], whitened: Tensor) -> Tensor:
    """``L^{-T} w``, ``n x 1``, at one lengthscale."""
    solved = whitened.clone()
    for block in reversed(blocks):
        end = block.shape[-1]
        start = end - block.shape[-2]
        part = torch.linalg.solve_triangular(block[:, start:].mT, solved[start:end], upper=True)
        solved[start:end] = part
        solved[:start] -= block[:, :start].mT @ part
    return solved


def _distances(X: Tensor, others: Tensor) -> Tensor:
    """Distances between rows, by their differences.

    By products they cancel where fixed features lie far outside of the box, and the matrix of
    correlations may lose its positive definiteness.
    """
    return torch.cdist(X, others, compute_mode="donot_use_mm_for_euclid_dist")


def _matern(distances: Tensor) -> Tensor:
    """Matern-5/2 correlations at distances in units of the lengthscale."""
    scaled = math.sqrt(5.0) * distances
    return (1.0 + scaled + scaled.square() / 3.0) * (-scaled).exp()
