"""`Calibrator`: learns the distribution of a model's residuals."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Self

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from torch import Tensor
from torch.nn import Module

from botorch_calib._validation import (
    check_finite,
    check_inputs,
    check_instance,
    check_one_of,
    check_open_unit,
    check_tensor,
)
from botorch_calib.calibration.learners.quantile_learner import QuantileLearner
from botorch_calib.calibration.scores import DEFAULT_SCORE, Score
from botorch_calib.distributions.piecewise import PiecewisePredictive
from botorch_calib.exceptions import warn


class Calibrator(Module, ABC):
    """Base class of calibrators, which learn the distribution of a model's residuals.

    The residual of an observation ``y`` is ``z = (y - mu) / sigma_y``, where the base model
    predicts the mean ``mu`` and the standard deviation ``sigma_y`` of ``y``. What a calibrator has
    learned is stored in buffers, whose lengths may change.
    """

    #: Cap on the absolute values of learned quantiles, in predictive standard deviations. If a
    #: learned quantile is at the cap, the true quantile may be beyond the cap.
    max_width: float = math.inf

    @abstractmethod
    def predictive(self, X: Tensor) -> PiecewisePredictive:
        """The distribution of the residual (see the class docstring) at each input.

        Args:
            X: Inputs ``batch_shape x q x d`` in the base model's transformed space.

        Returns:
            A distribution of batch shape ``batch_shape x q x 1``, differentiable in ``X``.
        """

    def predictive_at_pairs(
        self, Z: Tensor, columns: list[int], others: list[int]
    ) -> PiecewisePredictive:
        """The result of `predictive` at a grid of inputs ``Z``, ``b x M x d``.

        The ``columns`` of ``Z`` are equal for all ``M`` points of a row, and the ``others`` are
        equal for all ``b`` rows; a calibrator may save time by this. The result may be
        differentiable in ``Z`` only once.
        """
        return self.predictive(Z)

    @abstractmethod
    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        """Learn from residuals, strictly in order; a call that raises changes nothing.

        Args:
            X: Inputs ``n x d`` in the base model's transformed space.
            z: Residuals ``(y - mu) / sigma_y``, ``n`` (notation as in the class docstring), each
                from a model that was not conditioned on this ``y``.

        Returns:
            The predictive distribution of each residual before the calibrator learned from it, of
            batch shape ``n x 1``. These distributions are used to evaluate the calibrator.
        """

    def quantile(self, X: Tensor, level: float) -> Tensor:
        """The ``level``-quantile of the residual at ``X``, in predictive standard deviations.

        The result has the shape ``batch_shape x q x 1`` for ``X`` of shape ``batch_shape x q x d``,
        and is differentiable in ``X``.
        """
        check_open_unit("level", level)
        return self.predictive(X).quantile(level)

    def reset(self) -> None:
        """Return to the initial state, without any residuals."""
        raise UnsupportedError(f"{type(self).__name__} does not implement `reset`.")

    def fresh(self) -> Self:
        """A copy of the calibrator in its initial state."""
        twin = deepcopy(self)
        twin.reset()
        return twin

    @property
    @abstractmethod
    def num_updates(self) -> int:
        """Number of residuals that the calibrator has learned from."""

    @property
    def num_needed(self) -> int:
        """Number of residuals among which the rarest event is expected to occur once.

        An event is that the conformity score of a residual is on a given side (below or above) of a
        given learned threshold. The number is 0 if the calibrator learns no thresholds.
        """
        return 0

    def extra_repr(self) -> str:
        return f"num_updates={self.num_updates}"


def check_residuals(X: Tensor, z: Tensor) -> None:
    """Raise unless ``X`` is a finite ``n x d`` matrix and ``z`` a finite vector of length ``n``."""
    check_inputs("X", X)
    if check_tensor("z", z).shape != X.shape[:1]:
        raise BotorchTensorDimensionError(
            f"`z` must have shape {tuple(X.shape[:1])}, one residual for each row of `X`, "
            f"got {tuple(z.shape)}."
        )
    check_finite("z", z)


class NoCalibration(Calibrator):
    """A calibrator that leaves the predictive distribution unchanged, and learns nothing.

    With this calibrator, a `CalibratedModel` adds quantiles, probabilities and closed forms to a
    model such as an ensemble. In a comparison of calibrators it is the baseline.

    Example:
        >>> model = CalibratedModel(gp, NoCalibration())
        >>> bool(torch.allclose(model.posterior(X).mean, gp.posterior(X).mean))
        True
    """

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        """The standard normal distribution, of batch shape ``batch_shape x q x 1``."""
        shape = torch.Size([*X.shape[:-1], 1])
        return PiecewisePredictive.gaussian(shape, dtype=X.dtype, device=X.device)

    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        check_residuals(X, z)
        return self.predictive(X)

    def reset(self) -> None:
        pass

    @property
    def num_updates(self) -> int:
        return 0


class TrackedCalibrator(Calibrator):
    """A calibrator that builds its predictive distribution from the thresholds of a learner.

    The learner, ``tracker``, learns ``M`` thresholds: quantiles of the residuals' conformity scores
    at the levels ``tracker.levels``. Its thresholds are *raw*: they may be outside [0, 1], and they
    may not be sorted.
    """

    tracker: QuantileLearner

    def __init__(self, score: Score, tails: str) -> None:
        super().__init__()
        self.score = check_instance("score", score, Score, "RationalScore(max_width=50.0)")
        self.tails = check_one_of("tails", tails, ("gaussian", "stretched"))
        self._log_wealth, self._has_warned = torch.zeros(()), False

    @property
    def max_width(self) -> float:  # type: ignore[override]
        """Cap on the absolute values of quantiles: ``score.max_width``."""
        return self.score.max_width

    @abstractmethod
    def _scores(self, z: Tensor) -> Tensor:
        """Conformity scores in [0, 1] of residuals ``z``, both of shape ``n``."""

    @abstractmethod
    def _predictive_from(self, theta: Tensor) -> PiecewisePredictive:
        """The distribution of the residual for raw thresholds ``batch_shape x M``.

        Its batch shape is ``batch_shape x 1``.
        """

    @abstractmethod
    def _compared(self, theta: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantiles ``n x M``, the values ``n`` to compare with them, and their levels ``M``.

        The quantiles correspond to the raw thresholds ``theta``, ``n x M``. The values are the
        residuals ``z``, ``n``, or their absolute values if the quantiles are half-widths.
        """

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        return self._stated(self.tracker.threshold(X))

    def predictive_at_pairs(
        self, Z: Tensor, columns: list[int], others: list[int]
    ) -> PiecewisePredictive:
        if type(self).predictive is not TrackedCalibrator.predictive:
            return self.predictive(Z)
        return self._stated(self.tracker.threshold_at_pairs(Z, columns, others))

    def _stated(self, theta: Tensor) -> PiecewisePredictive:
        """The result of `_predictive_from`, built for one point only if all points are alike."""
        if self.tracker.shortest_lengthscale < math.inf or not theta.numel():
            return self._predictive_from(theta)
        # Without localization all points have the same thresholds, so one row of them suffices.
        row = theta.flatten(0, -2)[0] if theta.dim() > 1 else theta
        return self._predictive_from(row).expand(torch.Size([*theta.shape[:-1], 1]))

    @torch.no_grad()
    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        check_residuals(X, z)
        theta = self.tracker.update(X, self._scores(z))
        predicted = self._predictive_from(theta)
        self._notice_cap(*self._compared(theta, z))
        return predicted

    def _notice_cap(self, quantiles: Tensor, values: Tensor, levels: Tensor) -> None:
        """Warn once if values exceed capped quantiles more often than the levels allow.

        The arguments are the results of `_compared`. A betting martingale tests each level, as in
        `CalibrationAlarm`. If a level is correct, its test causes a warning with a probability of
        at most 5 %.
        """
        cap, above = self.max_width, quantiles > 0.0
        if self._has_warned or not bool((capped := quantiles.abs() >= cap).any()):
            return
        share = torch.where(above, 1.0 - levels, levels)  # predicted probability beyond the cap
        is_beyond = torch.where(above, 1.0, -1.0) * values.unsqueeze(-1) > cap
        gains = torch.where(is_beyond, 0.5 * (1.0 + share) / share, 0.5).log()
        self._log_wealth = self._log_wealth + torch.where(capped, gains, 0.0).sum(dim=0).cpu()
        if bool((self._log_wealth > math.log(20.0)).any()):
            self._has_warned = True
            wider = "" if cap >= DEFAULT_SCORE.max_width else f", or give `score={DEFAULT_SCORE}`"
            warn(
                f"Residuals exceed {cap:g} predictive standard deviations more often than "
                f"predicted, and a {type(self).__name__} has no wider intervals. The model is far "
                "too certain: see `print(noise_diagnosis(model))`, fit the noise (without "
                f"`train_Yvar`), use `sharpened(model)`{wider}."
            )

    def reset(self) -> None:
        self.tracker.reset()
        self._log_wealth, self._has_warned = torch.zeros(()), False

    @property
    def num_updates(self) -> int:
        return self.tracker.num_updates

    @property
    def num_needed(self) -> int:
        levels = self.tracker.levels
        rarest = float(torch.minimum(levels, 1 - levels).min())
        # The factor allows for rounding: a level of 0.8 in single precision needs 5, not 6.
        return math.ceil((1.0 - 1e-6) / rarest)

    def extra_repr(self) -> str:
        return f"score={self.score}, tails={self.tails!r}, {super().extra_repr()}"
