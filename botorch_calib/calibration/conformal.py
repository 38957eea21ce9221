"""Online conformal prediction, localized and global [Kim2024locbo]."""

from __future__ import annotations

import math

from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_open_unit, check_positive
from botorch_calib.calibration.base import TrackedCalibrator
from botorch_calib.calibration.learners.mixture import (
    AggregatedQuantileTracker,
    Setting,
    quantile_learner,
)
from botorch_calib.calibration.learners.online import OnlineQuantileTracker
from botorch_calib.calibration.scores import RationalScore, Score
from botorch_calib.distributions.piecewise import PiecewisePredictive


class LocalizedConformal(TrackedCalibrator):
    r"""Localized online conformal prediction (LOCBO) [Kim2024locbo, sections IV-B and IV-C].

    States the law of an observation as a conformal interval ``|z| <= w(x)`` of mass
    ``1 - alpha``, evenly spread, with normal tails outside; ``w`` is learned online such
    that the interval misses a fraction ``alpha`` of the observations, whatever their
    distribution, and adapts to the region: as long as the width that this takes lies between
    1e-3 and ``max_width`` standard deviations.

    Args:
        alpha: Miscoverage level, in (0, 1).
        lengthscale: Lengthscale of the localization, in the base model's transformed input
            space: in units of the unit cube under ``Normalize``. Several numbers, or ``"auto"``,
            are mixed online by their performance (see `AggregatedQuantileTracker`).
        scale: Strength of localization ``k(x, x)``; several numbers are mixed (default: 1).
        step_size: First step of the learner; several numbers are mixed (default: 0.05).
        step_decay: Exponent of the steps' decay (default: 0, or 0.3 where settings are mixed).
        regularization: Rate at which local corrections are forgotten.
        score: Scale on which the interval is learned. The default, `RationalScore`, resolves
            intervals of any width and is what makes badly overconfident models coverable;
            `GaussianScore` is the papers' (it cannot go beyond ``max_width = 3.4``).
        tails: ``"gaussian"`` or ``"stretched"``, see `PiecewisePredictive.conformal`.
        max_width: Cap of the half-width in standard deviations (default: the score's).

    Raises:
        InputDataError: If ``alpha`` is outside (0, 1), a step or scale is negative, ``tails``
            is unknown or ``max_width`` is not positive.
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
        score: Score | None = None,
        tails: str = "stretched",
        max_width: float | None = None,
    ) -> None:
        super().__init__()
        self.alpha = check_open_unit("alpha", alpha)
        if tails not in ("gaussian", "stretched"):
            raise InputDataError(f"`tails` must be 'gaussian' or 'stretched', got {tails!r}.")
        self.score = RationalScore() if score is None else score
        self.tails = tails
        self.max_width = check_positive(
            "max_width", self.score.default_max_width if max_width is None else max_width
        )
        self.tracker = quantile_learner(
            [self.score.two_sided_level(alpha)],
            [self.score.initial_two_sided(alpha)],
            lengthscale,
            scale,
            step_size,
            step_decay,
            regularization,
        )

    def half_width(self, X: Tensor) -> Tensor:
        """Half-width of the interval in predictive standard deviations, ``... x 1``."""
        return self.score.half_width(self.tracker.threshold(X), max_width=self.max_width)

    def _scores(self, z: Tensor) -> Tensor:
        return self.score.two_sided(z)

    def _law(self, theta: Tensor) -> PiecewisePredictive:
        return PiecewisePredictive.conformal(
            self.alpha,
            half_width=self.score.half_width(theta, max_width=self.max_width),
            max_width=self.max_width,
            tails=self.tails,
        )

    @property
    def num_needed(self) -> int:
        """See `Calibrator.num_needed`."""
        return math.ceil(1 / min(self.alpha, 1 - self.alpha) - 1e-9)


class OnlineConformal(LocalizedConformal):
    """Online conformal prediction without localization (LOCBO with ``l = inf``).

    Args:
        alpha: Miscoverage level, in (0, 1).
        step_size: First step of the learner; several numbers are mixed (default: 0.05).
        step_decay: Exponent of the steps' decay (default: 0, or 0.3 where settings are mixed).
        score: See `LocalizedConformal`.
        tails: See `LocalizedConformal`.
        max_width: See `LocalizedConformal`.
    """

    def __init__(
        self,
        alpha: float,
        step_size: Setting | None = None,
        step_decay: float | None = None,
        score: Score | None = None,
        tails: str = "stretched",
        max_width: float | None = None,
    ) -> None:
        super().__init__(
            alpha,
            lengthscale=math.inf,
            step_size=step_size,
            step_decay=step_decay,
            score=score,
            tails=tails,
            max_width=max_width,
        )
