"""`ExactQuantileLearner`: quantiles of a set of conformity scores, whose order does not matter.

OCBO is [Deshpande2024].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from botorch_calib._validation import check_positive, check_width
from botorch_calib.calibration.learners.quantile_learner import QuantileLearner, Thresholds
from botorch_calib.calibration.learners.radial_sum import gaussian_correlation

# Number of rows of the n x n matrix of weights that are in memory at once when thresholds before
# each of n observations are computed.
_CHUNK = 256


class ExactQuantileLearner(QuantileLearner):
    """Minimises the pinball loss of all scores, with a penalty on changes of the thresholds.

    The learner is meant for a calibration set: the scores of leave-one-out residuals, for example.
    It solves OCBO eq. 11 without linearisation, by one sort (``pinball_minimizer``). The order of
    scores does not matter, and thresholds of neighbouring levels do not cross if the initial
    thresholds increase with the level. There is no coverage bound for adversarial scores. With a
    finite lengthscale, a score observed at ``x_i`` has the weight ``exp(-|x_i - x|^2 /
    lengthscale^2)`` in the thresholds at ``x``. So thresholds far from all observations keep their
    initial values.

    Args:
        levels: Strictly increasing levels in (0, 1), ``M``.
        step_size: Inverse weight of the penalty. A single score changes a threshold by at most
            ``step_size``.
        lengthscale: Lengthscale of the weights; with infinity all weights are 1.
        initial: Initial thresholds in [0, 1], of shape ``M`` (default: ``levels``).

    Example:
        >>> learner = ExactQuantileLearner(levels=[0.1, 0.9], step_size=0.5)
        >>> before = learner.update(X, torch.rand(20))  # thresholds before each score, 20 x 2
        >>> theta = learner.threshold(X)
    """

    scores: Tensor
    _payload: ClassVar[str] = "scores"

    def __init__(
        self,
        levels: Tensor | Sequence[float],
        step_size: float,
        lengthscale: float = math.inf,
        initial: Tensor | Sequence[float] | None = None,
    ) -> None:
        super().__init__(levels, initial, num_columns=1)
        self.step_size = check_positive("step_size", step_size)
        self.lengthscale = check_positive("lengthscale", lengthscale, allow_inf=True)

    @property
    def localized(self) -> bool:
        """Always true: each score is stored with its input."""
        return True

    @property
    def shortest_lengthscale(self) -> float:
        return self.lengthscale

    def threshold(self, X: Tensor) -> Tensor:
        if math.isinf(self.lengthscale) or not len(self.scores):
            return super().threshold(X)
        check_width(X, self.centers.shape[-1])
        weights = gaussian_correlation(X.to(self.centers), self.centers, self.lengthscale)
        return self._minimizer(self.scores, weights)

    def _derive(self) -> Thresholds:
        return Thresholds(self._minimizer(self.scores) if len(self.scores) else self.initial)

    def _minimizer(self, scores: Tensor, weights: Tensor | None = None) -> Tensor:
        return pinball_minimizer(
            scores.squeeze(-1), self.levels, self.initial, self.step_size, weights
        )

    def _learn(self, X: Tensor, u: Tensor) -> Tensor:
        start = self.num_updates
        self._store(X, torch.cat([self.scores, u.unsqueeze(-1)]))
        if not len(u):
            return self.initial.expand(0, -1)
        # The thresholds for an observation minimise the loss over the observations before it. So in
        # its row of weights, all other observations (itself and later ones) have weight 0.
        index = torch.arange(self.num_updates, device=u.device)
        rows = []
        for chunk in index[start:].split(_CHUNK):
            weights = (index < chunk.unsqueeze(-1)).to(u)
            if math.isfinite(self.lengthscale):
                kernel = gaussian_correlation(X[chunk - start], self.centers, self.lengthscale)
                weights = weights * kernel
            rows.append(self._minimizer(self.scores, weights))
        return torch.cat(rows)


def pinball_minimizer(
    u: Tensor, levels: Tensor, center: Tensor, step_size: float, weights: Tensor | None = None
) -> Tensor:
    r"""Minimiser of ``(q - c)^2 / (2 eta) + sum_i w_i pinball_p(u_i, q)`` at each level ``p``.

    The pinball loss of the score ``u_i`` is ``pinball_p(u_i, q) = (u_i - q) (p - 1{u_i <= q})``,
    with the weight ``w_i``. This is OCBO eq. 11 without linearised losses, and with a penalty that
    is centred at the threshold ``c`` of a calibrated model instead of at 0.

    Let ``W(q)`` be the total weight of the scores at or below ``q``, and ``W`` the total weight of
    all scores. The derivative ``(q - c) / eta + W(q) - p W`` increases with ``q`` and jumps at the
    scores. Let ``u_(1) <= ... <= u_(n)`` be the sorted scores and ``C_k`` the total weight of the
    ``k`` smallest scores. Between ``u_(k)`` and ``u_(k+1)`` (piece ``k``) the derivative is linear,
    and ``a_k = c + eta (p W - C_k)`` is the root of this linear function. The minimiser is on the
    first piece with ``u_(k+1) >= a_k``. There the derivative changes its sign, either at the root
    or at ``u_(k)``, where it jumps. So the minimiser is

        ``q = max(a_k, u_(k))``,  with ``u_(0) = -inf`` and ``u_(n+1) = inf``.

    The condition is ``u_(k+1) + eta C_k >= c + eta p W``. Its left side increases with ``k`` and is
    the same for all levels, so one sort and one search suffice. If ``c`` increases with ``p``, then
    ``a_k`` and ``q`` do too, and quantiles do not cross.

    Args:
        u: Scores ``n``.
        levels: Levels ``p``, ``M``.
        center: Center ``c`` of the penalty for each level, ``M``.
        step_size: ``eta``, the inverse weight of the penalty.
        weights: Nonnegative weights ``... x n``, with any batch shape (default: all 1).

    Returns:
        Minimisers with the batch shape of the weights, ``... x M``, differentiable in the weights.
    """
    ordered, order = u.sort()
    floor, ceiling = F.pad(ordered, (1, 0), value=-math.inf), F.pad(ordered, (0, 1), value=math.inf)
    weights = torch.ones_like(u) if weights is None else weights
    cumulative = F.pad(weights[..., order].cumsum(dim=-1), (1, 0))
    targets = center + step_size * levels * cumulative[..., -1:]
    ends = (ceiling + step_size * cumulative).detach()
    piece = torch.searchsorted(ends, targets.detach())
    # Rounding may select the next piece k + 1 only if a_k is nearly u_(k+1). Both pieces then give
    # the same result up to rounding.
    roots = targets - step_size * cumulative.gather(-1, piece)
    return torch.maximum(roots, floor[piece])
