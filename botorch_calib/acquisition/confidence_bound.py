"""Quantiles as confidence bounds, and the expected shortfall."""

from __future__ import annotations

from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from botorch.utils import t_batch_mode_transform
from torch import Tensor

from botorch_calib._validation import check_open_unit
from botorch_calib.acquisition.base import CalibratedAcquisitionFunction


class CalibratedUpperConfidenceBound(CalibratedAcquisitionFunction):
    """The ``level``-quantile of the calibrated distribution: an upper confidence bound.

    BoTorch's ``UpperConfidenceBound`` adds a multiple of the standard deviation to the mean; this
    class uses a probability instead. The quantile is of the noise-free objective, or of an
    observation if the model has ``denoise=False`` or ``observation_noise`` is True. The guarantees
    of calibrators are for quantiles of observations, at the levels that the calibrators learn.

    *Value at risk*: with ``level=0.1, observation_noise=True`` the value is the outcome that is
    exceeded with probability 0.9, like ``VaR(alpha=0.9)`` of ``botorch.acquisition.risk_measures``.
    Noise and uncertainty then lower the value, so the function does not explore.

    Args:
        level: Level of the quantile, in (0, 1).
        maximize: If False, the value is ``-q``, where the ``1 - level`` quantile ``q`` is a lower
            confidence bound.
        model, posterior_transform, X_pending, num_fantasies: As in
            `LogCalibratedExpectedImprovement`, which also lists the errors. With pending points the
            quantile is averaged over fantasies.
        observation_noise: Whether the quantile is of an observation even if the model denoises.

    Example:
        >>> acqf = CalibratedUpperConfidenceBound(model, level=0.9)
        >>> bounds_of_f = acqf(X.unsqueeze(-2))
    """

    def __init__(
        self,
        model: Model,
        level: float = 0.9,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
        observation_noise: bool = False,
    ) -> None:
        super().__init__(model, posterior_transform, maximize, num_fantasies, observation_noise)
        self.level = check_open_unit("level", level)
        self.set_X_pending(X_pending)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        return self._reduce(self._marginals(X).quantile(self.level))


class CalibratedExpectedShortfall(CalibratedAcquisitionFunction):
    """The expected shortfall: the mean over the worst share ``1 - alpha`` of the outcomes.

    With ``alpha = 0.9`` this is the mean of an observation given that it is below the 10 % quantile
    (`CalibratedPosterior.conditional_mean_below`), whether the model denoises or not. The mean is
    never above this quantile, which is the value at risk (see `CalibratedUpperConfidenceBound`).
    Observation noise and uncertainty lower the value, so the function does not explore.

    BoTorch's ``CVaR`` uses the same ``alpha`` for a Monte Carlo objective over outcomes of
    perturbed inputs. The ambiguity set `ConditionalValueAtRisk` averages over contexts instead.

    Args:
        alpha: The risk level, in (0, 1). The mean is over the outcomes below the quantile of level
            ``1 - alpha``.
        maximize: If False, the outcome is a loss, and the value is minus the mean of the outcomes
            above the ``alpha``-quantile.
        model, posterior_transform, X_pending, num_fantasies: As in
            `LogCalibratedExpectedImprovement`. With pending points the shortfall is averaged over
            fantasies.

    Example:
        >>> acqf = CalibratedExpectedShortfall(model, alpha=0.9)  # the worst tenth of the outcomes
        >>> values = acqf(X.unsqueeze(-2))
    """

    def __init__(
        self,
        model: Model,
        alpha: float = 0.9,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        super().__init__(
            model, posterior_transform, maximize, num_fantasies, observation_noise=True
        )
        self.alpha = check_open_unit("alpha", alpha)
        self.set_X_pending(X_pending)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        return self._reduce(self._marginals(X).conditional_mean_below(1.0 - self.alpha))
