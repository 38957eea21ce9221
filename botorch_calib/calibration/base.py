"""`Calibrator`: learns the distribution of a model's residuals.

Inputs are in the base model's transformed space (the unit cube under ``Normalize``). Residuals
``z`` are in units of the predictive standard deviation.
"""

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
    """The base class of calibrators. The state consists of buffers whose lengths may change."""

    #: Cap on the absolute values of quantiles, in predictive standard deviations. A true quantile
    #: may be larger than a learned quantile that has reached the cap.
    max_width: float = math.inf

    @abstractmethod
    def predictive(self, X: Tensor) -> PiecewisePredictive:
        """Predictive distribution of ``z``, ``batch_shape x q x 1``, differentiable in ``X``.

        Args:
            X: Inputs ``batch_shape x q x d`` in the base model's transformed space.
        """

    def predictive_at_pairs(
        self, Z: Tensor, columns: list[int], others: list[int]
    ) -> PiecewisePredictive:
        """The result of `predictive` at a grid of inputs ``Z``, ``b x M x d``, once differentiable.

        Values of ``Z`` in ``columns`` vary along ``b`` only, and values in ``others`` along ``M``.
        """
        return self.predictive(Z)

    @abstractmethod
    def update(self, X: Tensor, z: Tensor) -> PiecewisePredictive:
        """Learn from residuals, strictly in order; a call that raises changes nothing.

        Args:
            X: Inputs ``n x d`` in the base model's transformed space.
            z: Residuals ``(y - mu) / sigma_y``, ``n``, each from a model that was not conditioned
                on this ``y``.

        Returns:
            The predictive distribution of each residual before the calibrator learned from it, of
            batch shape ``n x 1``. These distributions are used to evaluate the calibrator.
        """

    def quantile(self, X: Tensor, level: float) -> Tensor:
        """The ``level``-quantile of ``z``, ``batch_shape x q x 1``, differentiable in ``X``."""
        check_open_unit("level", level)
        return self.predictive(X).quantile(level)

    def reset(self) -> None:
        """Discard all that has been learned."""
        raise UnsupportedError(f"{type(self).__name__} does not implement `reset`.")

    def fresh(self) -> Self:
        """A copy of the calibrator in its initial state."""
        twin = deepcopy(self)
        twin.reset()
        return twin

    @property
    @abstractmethod
    def num_updates(self) -> int:
        """Number of residuals learned from."""

    @property
    def num_needed(self) -> int:
        """Number of residuals in which the rarest event is expected to occur once.

        The events are scores below and scores above each learned threshold. The number is 0 if the
        calibrator learns no thresholds.
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

    With it, a `CalibratedModel` adds quantiles, probabilities and closed forms to a model such as
    an ensemble. In comparisons it is the method without calibration.

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
    """A calibrator that builds its predictive distribution from the thresholds of a learner."""

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
        """Scores in [0, 1], ``n``, of residuals ``n``."""

    @abstractmethod
    def _predictive_from(self, theta: Tensor) -> PiecewisePredictive:
        """The distribution for raw thresholds ``batch_shape x M``."""

    @abstractmethod
    def _compared(self, theta: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Quantiles ``n x M`` for raw thresholds, values ``n`` to compare, and levels ``M``."""

    def predictive(self, X: Tensor) -> PiecewisePredictive:
        return self._stated(self.tracker.threshold(X))

    def predictive_at_pairs(
        self, Z: Tensor, columns: list[int], others: list[int]
    ) -> PiecewisePredictive:
        if type(self).predictive is not TrackedCalibrator.predictive:
            return self.predictive(Z)
        return self._stated(self.tracker.threshold_at_pairs(Z, columns, others))

    def _stated(self, theta: Tensor) -> PiecewisePredictive:
        """The distributions for raw thresholds ``... x M`` at all points."""
        if self.tracker.shortest_lengthscale < math.inf or not theta.numel():
            return self._predictive_from(theta)
        # Without localization, all points share one distribution.
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

        A betting martingale tests each level, as in `CalibrationAlarm`. If a level is correct, its
        test causes a warning with a probability of at most 5 %.
        """
        cap, above = self.max_width, quantiles > 0.0
        if self._has_warned or not bool((capped := quantiles.abs() >= cap).any()):
            return
        share = torch.where(above, 1.0 - levels, levels)  # probability beyond the cap
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
        return math.ceil((1.0 - 1e-6) / rarest)  # 5 for a level of 0.2, also in single precision

    def extra_repr(self) -> str:
        return f"score={self.score}, tails={self.tails!r}, {super().extra_repr()}"
