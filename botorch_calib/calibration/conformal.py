"""Online conformal prediction, localized and global [Kim2024locbo]."""

from __future__ import annotations

import math

from torch import Tensor

from botorch_calib._validation import check_open_unit
from botorch_calib.calibration.base import TrackedCalibrator
from botorch_calib.calibration.learners.automatic_settings import (
    AggregatedQuantileTracker,
    Setting,
    quantile_learner,
)
from botorch_calib.calibration.learners.online import OnlineQuantileTracker
from botorch_calib.calibration.scores import DEFAULT_SCORE, Score
from botorch_calib.distributions.piecewise import PiecewisePredictive


class LocalizedConformal(TrackedCalibrator):
    r"""Localized online conformal prediction (LOCBO) [Kim2024locbo, sections IV-B and IV-C].

    The predictive distribution of the residual ``z`` at an input ``x`` spreads the mass
    ``1 - alpha`` evenly over a conformal interval ``|z| <= w(x)``, and has normal tails outside the
    interval. The half-width ``w``, in predictive standard deviations, is learned online.

    **Guarantee.** For any sequence of observations, the share outside the interval converges to
    ``alpha``. After ``T`` residuals, learned one at a time, the share differs from ``alpha`` by at
    most ``tracker.coverage_bound(T)``. With ``lengthscale="auto"`` and ``alpha = 0.2`` this bound
    is 0.19 for ``T = 100`` and 0.04 for ``T = 1000``; with one lengthscale it is several times as
    large. The guarantee holds while the required half-width is between 1e-3 and
    ``score.max_width``. A ``CalibrationWarning`` is issued once if residuals exceed
    ``score.max_width`` too often.

    Args:
        alpha: Miscoverage level, in (0, 1).
        lengthscale: Lengthscale of the localization, in the base model's transformed input space:
            in units of the unit cube under ``Normalize``. If any setting is several numbers or
            ``"auto"``, one learner is run for each combination of settings, and the learners'
            thresholds are averaged with weights that depend on their losses (see
            `AggregatedQuantileTracker`). ``"auto"`` means 0.1, 0.25 and infinity.
        scale: Strength of localization: the kernel's value ``k(x, x)``, one or several numbers
            (default: 1).
        step_size: First step size of the learner, one or several numbers (default: 0.05 for one
            learner; 0.05, 0.1 and 0.2 for several).
        step_decay: Exponent with which step sizes decay over time (default: 0 for one learner, 0.3
            for several).
        regularization: Rate at which local corrections decay; must be 0 for several learners.
        score: Conformity score whose quantile is learned; ``score.max_width`` caps the half-width.
            The default, ``RationalScore()``, resolves half-widths up to 50 standard deviations, for
            badly overconfident models. The papers use ``GaussianScore()``, with a cap of 3.4.
        tails: Standard deviation of the normal tails outside the interval. ``"stretched"`` makes it
            proportional to the width of the interval; ``"gaussian"`` keeps the model's.

    Example:
        >>> model = CalibratedModel.from_history(gp, LocalizedConformal(alpha=0.2))
        >>> half_widths = model.calibrator.half_width(X)  # in predictive standard deviations
    """

    tracker: OnlineQuantileTracker | AggregatedQuantileTracker

    def __init__(
        self,
        alpha: float,
        lengthscale: Setting | str = "auto",
        scale: Setting | None = None,
        step_size: Setting | None = None,
        step_decay: float | None = None,
        regularization: float = 0.0,
        score: Score = DEFAULT_SCORE,
        tails: str = "stretched",
    ) -> None:
        super().__init__(score, tails)
        self.alpha = check_open_unit("alpha", alpha)
        level, start = self.score.two_sided_level(alpha), self.score.initial_two_sided(alpha)
        self.tracker = quantile_learner(
            [level], [start], lengthscale, scale, step_size, step_decay, regularization
        )

    def half_width(self, X: Tensor) -> Tensor:
        """Half-width of the interval at ``X``, in predictive standard deviations.

        The result has the shape ``batch_shape x q x 1`` for ``X`` of shape ``batch_shape x q x d``.
        """
        return self.score.half_width(self.tracker.threshold(X))

    def _scores(self, z: Tensor) -> Tensor:
        return self.score.two_sided(z)

    def _compared(self, theta: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.score.half_width(theta), z.abs(), theta.new_tensor([1.0 - self.alpha])

    def _predictive_from(self, theta: Tensor) -> PiecewisePredictive:
        width, most = self.score.half_width(theta), self.score.max_width
        return PiecewisePredictive.conformal(self.alpha, width, most, self.tails, validate=False)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha:g}, {super().extra_repr()}"


class OnlineConformal(LocalizedConformal):
    """Online conformal prediction without localization (LOCBO with an infinite lengthscale).

    All inputs have the same half-width. See `LocalizedConformal` for the arguments.

    Example:
        >>> model = CalibratedModel.from_history(gp, OnlineConformal(alpha=0.2))
    """

    def __init__(
        self,
        alpha: float,
        step_size: Setting | None = None,
        step_decay: float | None = None,
        score: Score = DEFAULT_SCORE,
        tails: str = "stretched",
    ) -> None:
        super().__init__(alpha, math.inf, None, step_size, step_decay, score=score, tails=tails)
