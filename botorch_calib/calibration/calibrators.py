"""Calibrators: what turns the history of a model's residuals into a predictive law.

A calibrator joins a score (`botorch_calib.calibration.scores`), an online learner
(`botorch_calib.calibration.tracker`) and the form of the law
(`botorch_calib.predictive.PiecewisePredictive`). It sees inputs in the base model's
transformed space (the unit cube under ``Normalize``) and residuals ``z`` in units of the
predictive standard deviation, so it knows neither models nor outcome units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Self

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import check_finite, check_inputs, check_open_unit, check_positive
from botorch_calib.calibration.aggregation import (
    AggregatedQuantileTracker,
    Setting,
    quantile_learner,
)
from botorch_calib.calibration.learner import QuantileLearner
from botorch_calib.calibration.scores import RationalScore, Score
from botorch_calib.calibration.tracker import OnlineQuantileTracker
from botorch_calib.predictive import PiecewisePredictive


class Calibrator(Module, ABC):
    """The protocol of calibrators.

    Implementations keep what they have learned in buffers, so that ``state_dict`` and
    ``load_state_dict`` carry it, also between histories of different lengths.
    """

    @abstractmethod
    def predictive(self, X: Tensor) -> PiecewisePredictive:
        """Law of ``z`` at ``X``, differentiable in ``X``.

        Args:
            X: Inputs ``batch_shape x q x d`` in the base model's transformed space.

        Returns:
            A law of batch shape ``batch_shape x q x 1``.
        """

    @abstractmethod
    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        """Learn from residuals, strictly in order; a call that raises changes nothing.

        Args:
            X: Inputs ``n x d`` in the base model's transformed space.
            z: Residuals ``(y - mu) / sigma_y`` of shape ``n``, each by a model that had not
                seen its ``y``.

        Returns:
            The laws of batch shape ``n x 1`` that stood when each residual arrived, before
            it was learned from: what the calibrator is judged by.
        """

    def reset(self) -> None:
        """Forget everything learned; what diagnostics need to judge a history anew."""
        raise UnsupportedError(f"{type(self).__name__} does not implement `reset`.")

    def fresh(self) -> Self:
        """A copy that has learned nothing."""
        twin = deepcopy(self)
        twin.reset()
        return twin

    @property
    @abstractmethod
    def num_updates(self) -> int:
        """Number of residuals seen."""

    @property
    def num_needed(self) -> int:
        """Number of residuals before which the rarest event it states is hardly ever seen."""
        return 0

    def extra_repr(self) -> str:
        """What ``repr`` shows beside the learner."""
        return f"num_updates={self.num_updates}"


def check_residuals(X: Tensor, z: Tensor) -> None:
    """Raise unless ``X`` is a finite ``n x d`` matrix and ``z`` a finite vector of length ``n``."""
    check_inputs("X", X)
    if z.shape != X.shape[:1]:
        raise BotorchTensorDimensionError(
            f"`z` must have shape {tuple(X.shape[:1])}, one residual for each row of `X`, "
            f"got {tuple(z.shape)}."
        )
    check_finite("z", z)


class TrackedCalibrator(Calibrator):
    """A calibrator whose law is made of the thresholds of an online learner.

    Subclasses set ``tracker`` and say how residuals are scored and what law thresholds make.
    """

    tracker: QuantileLearner

    @abstractmethod
    def _scores(self, z: Tensor) -> Tensor:
        """Scores in [0, 1] of residuals, of their shape ``n``."""

    @abstractmethod
    def _law(self, theta: Tensor) -> PiecewisePredictive:
        """The law with raw thresholds ``batch_shape x M``."""

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        """See `Calibrator.predictive`."""
        return self._law(self.tracker.threshold(X))

    @torch.no_grad()
    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        """See `Calibrator.update`."""
        check_residuals(X, z)
        return self._law(self.tracker.update(X, self._scores(z)))

    def reset(self) -> None:
        """Forget everything learned."""
        self.tracker.reset()

    @property
    def num_updates(self) -> int:
        """Number of residuals seen."""
        return self.tracker.num_updates


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
