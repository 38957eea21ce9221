"""`QuantileRecalibrator`: recalibrates all quantiles, globally (OCBO) or locally (OCBO-L)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_levels, check_numbers, check_one_of, check_open_unit
from botorch_calib.calibration.base import TrackedCalibrator
from botorch_calib.calibration.learners.automatic_settings import (
    STEP_SIZE,
    Setting,
    quantile_learner,
)
from botorch_calib.calibration.learners.kernel_quantile_regression import ExactQuantileLearner
from botorch_calib.calibration.scores import DEFAULT_SCORE, Score
from botorch_calib.distributions.piecewise import PiecewisePredictive, has_rare_ends

#: Default number of levels: 0.05, 0.10, ..., 0.95.
NUM_LEVELS = 19


class QuantileRecalibrator(TrackedCalibrator):
    r"""Recalibrates all quantiles of a distribution, globally or locally [Deshpande2024].

    The distribution of an observation is given by its quantiles at ``levels``. A learner, the
    ``tracker``, learns a threshold ``theta_j`` for each level ``p_j``, so that a fraction ``p_j``
    of the observations' scores is at or below ``theta_j``. The quantile is the residual with this
    score. Between levels the distribution follows the Gaussian model: its cdf is a linear function
    of the model's cdf (the paper's interpolation). Thresholds of neighbouring levels may cross.
    They are sorted when a distribution is built (monotone rearrangement), and remain unsorted in
    the learner. (The paper's Lemma 4 overlooks that hits, the indicators ``1{u <= theta_j}`` of a
    score ``u``, differ between levels.)

    With ``method="online"`` residuals must be in the order of observation, and each residual must
    be from a prediction that was made before its observation (`CalibratedModel.from_history` or
    ``observe``). Then the frequency of hits of the *raw* thresholds, before sorting, differs from
    ``p_j`` by at most ``tracker.coverage_bound(T)`` after any ``T`` residuals. This is the paper's
    Theorem 3, with the sign of its update corrected. Sorting exchanges the hits of levels that
    cross. So for the sorted quantiles only the error summed over all levels is bounded: an
    adversary that makes two levels cross all the time can make the frequency of each level wrong.

    With ``method="exact"`` the residuals are a calibration set in any order, such as leave-one-out
    residuals (the paper's Algorithm 4).

    Args:
        levels: Increasing levels in (0, 1) (default: 19 levels, 0.05 to 0.95).
        lengthscale: See `LocalizedConformal`. Infinity gives the paper's OCBO, and a finite number
            gives its localized form (OCBO-L).
        scale, step_size, step_decay, regularization: See `LocalizedConformal`.
        method: ``"online"`` or ``"exact"``. With ``"exact"``, ``lengthscale`` and ``step_size`` are
            single numbers, and ``scale``, ``step_decay`` and ``regularization`` are not available.
        score: Conformity score whose quantiles are learned; ``score.max_width`` caps the absolute
            values of the quantiles of residuals. The paper uses ``GaussianScore()``.
        tails: Standard deviation of the normal density between and beyond the quantiles.
            ``"gaussian"`` keeps the model's standard deviation, as in the paper. ``"stretched"``
            multiplies it by the distance between the outermost learned quantiles, divided by this
            distance for the model. Default: ``"stretched"``, or ``"gaussian"`` for a single level.

    Example:
        >>> model = CalibratedModel.from_history(gp, QuantileRecalibrator([0.1, 0.5, 0.9]))

    .. [Deshpande2024]
        S. Deshpande, C. Marx and V. Kuleshov. Online calibrated and conformal prediction
        improves Bayesian optimization. AISTATS, 2024.
    """

    def __init__(
        self,
        levels: Tensor | Sequence[float] | None = None,
        lengthscale: Setting | str = math.inf,
        scale: Setting | None = None,
        step_size: Setting | None = None,
        step_decay: float | None = None,
        regularization: float = 0.0,
        method: str = "online",
        score: Score = DEFAULT_SCORE,
        tails: str | None = None,
    ) -> None:
        if levels is None:
            levels = torch.arange(1, NUM_LEVELS + 1, dtype=torch.double) / (NUM_LEVELS + 1)
        levels = check_levels("levels", check_numbers("levels", levels).detach())
        if tails is None:
            tails = "stretched" if len(levels) > 1 else "gaussian"
        super().__init__(score, tails)
        self.method = check_one_of("method", method, ("online", "exact"))
        # `index_of` uses this copy on the CPU, so that it does not synchronize with the device.
        self._level_values = levels.tolist()
        self._level_unit = torch.finfo(levels.dtype).eps
        self._hollow = has_rare_ends(levels)
        if tails == "stretched" and len(levels) < 2:
            raise InputDataError(
                "`tails='stretched'` needs at least two `levels`: omit `tails` for a single level."
            )
        initial = self.score.initial_signed(levels)
        if method == "exact":
            if not (scale is None and step_decay is None and regularization == 0.0):
                raise InputDataError(
                    "`scale`, `step_decay` and `regularization` need `method='online'`."
                )
            step = STEP_SIZE if step_size is None else step_size
            if not (isinstance(lengthscale, (int, float)) and isinstance(step, (int, float))):
                raise InputDataError(
                    "With `method='exact'`, `lengthscale` and `step_size` must be numbers."
                )
            self.tracker = ExactQuantileLearner(levels, step, float(lengthscale), initial)
        else:
            self.tracker = quantile_learner(
                levels, initial, lengthscale, scale, step_size, step_decay, regularization
            )

    @property
    def levels(self) -> Tensor:
        """The ``M`` levels of the learned quantiles, increasing."""
        return self.tracker.levels

    def quantiles(self, X: Tensor) -> Tensor:
        """Quantiles of the residual at ``X``, in predictive standard deviations.

        For ``X`` of shape ``batch_shape x q x d`` the shape is ``batch_shape x q x M``. The
        quantiles are sorted along the last dimension, which has the ``M`` `levels`.
        """
        return self.score.knots(self.tracker.threshold(X)).sort(dim=-1).values

    def quantile(self, X: Tensor, level: float) -> Tensor:
        """The ``level``-quantile of the residual at ``X``, in predictive standard deviations.

        The result has the shape ``batch_shape x q x 1``. If ``level`` is one of the ``levels``, the
        result is the raw learned quantile, to which the guarantee applies. It differs from the
        quantile of `predictive` where learned quantiles cross, because `predictive` sorts them.
        """
        index = self.index_of(check_open_unit("level", level))
        if index is None:
            return super().quantile(X, level)
        return self.score.knots(self.tracker.threshold(X)[..., index : index + 1])

    def index_of(self, level: float) -> int | None:
        """The position of ``level`` in `levels`, or None if no level is equal up to rounding."""
        gaps = [abs(own - level) for own in self._level_values]
        index = min(range(len(gaps)), key=gaps.__getitem__)
        # A tolerance relative to the smaller tail does not confuse extreme levels. It must be at
        # least the machine epsilon, as the levels are rounded.
        tolerance = max(1e-6 * min(level, 1.0 - level), self._level_unit)
        return index if gaps[index] <= tolerance else None

    def _scores(self, z: Tensor) -> Tensor:
        return self.score.signed(z)

    def _compared(self, theta: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.score.knots(theta), z, self.levels

    def _predictive_from(self, theta: Tensor) -> PiecewisePredictive:
        knots, most = self.score.knots(theta).unsqueeze(-2), self.score.max_width
        return PiecewisePredictive.recalibrated(
            self.levels, knots, most, self.tails, validate=False, hollow=self._hollow
        )
