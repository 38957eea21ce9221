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

    The predictive distribution spreads the mass ``1 - alpha`` evenly over a conformal interval
    ``|z| <= w(x)``, and has normal tails outside the interval. ``w`` is learned online.

    **Guarantee.** For any sequence of observations, the share outside the interval converges to
    ``alpha``. After ``T`` residuals, learned one at a time, the share differs from ``alpha`` by at
    most ``tracker.coverage_bound(T)``. With ``lengthscale="auto"`` and ``alpha = 0.2`` this bound
    is 0.19 for ``T = 100`` and 0.04 for ``T = 1000``; with one lengthscale it is several times as
    large. The guarantee holds while the required width is between 1e-3 and ``score.max_width``
    standard deviations. A ``CalibrationWarning`` is issued once if residuals exceed the cap too
    often.

    Args:
        alpha: Miscoverage level, in (0, 1).
        lengthscale: Lengthscale of the localization, in the base model's transformed input space:
            in units of the unit cube under ``Normalize``. For several numbers, or ``"auto"``, one
            learner for each setting is run, and the learners' thresholds are averaged with weights
            for their performance (see `AggregatedQuantileTracker`).
        scale: Strength of localization ``k(x, x)``, one or several numbers (default: 1).
        step_size: First step of the learner, one or several numbers (default: 0.05, or 0.05, 0.1
            and 0.2 if any setting is several numbers or ``"auto"``).
        step_decay: Exponent of the decay of steps (default: 0 for one learner, 0.3 for several).
        regularization: Rate at which local corrections decay.
        score: Scale on which the interval is learned; ``score.max_width`` caps the half-width. The
            default, ``RationalScore()``, resolves half-widths up to 50 standard deviations, for
            badly overconfident models. The papers use ``GaussianScore()``, with a cap of 3.4.
        tails: The normal tails outside the interval: ``"stretched"`` scales them with the width of
            the interval; ``"gaussian"`` keeps the scale of the model.

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
        """Half-width of the interval in predictive standard deviations, ``... x 1``."""
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
    """Online conformal prediction without localization (LOCBO with ``l = inf``).

    See `LocalizedConformal` for the arguments.

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
