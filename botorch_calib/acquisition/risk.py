"""Risk measures of the outcome as acquisition functions, in closed form (``q = 1``).

They say which point to choose if one of its bad outcomes counts: of the calibrated distribution of
an observation there, they take the lower quantile (value at risk) or the mean of what lies below it
(conditional value at risk, or expected shortfall). What spreads an outcome, observation noise and
what is not known of the objective, counts against a point in either case. So they do not explore.

``alpha`` is that of ``botorch.acquisition.risk_measures``: the worst outcomes with a total
probability of ``1 - alpha`` are what is looked at. BoTorch's are objectives for Monte Carlo, over
outcomes that an input perturbation or an environment brings about; these are of the outcome that a
calibrated model states. `botorch_calib.ConditionalValueAtRisk` is over contexts.
"""

from __future__ import annotations

from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from torch import Tensor

from botorch_calib._validation import check_open_unit
from botorch_calib.acquisition.calibrated import (
    CalibratedAcquisitionFunction,
    CalibratedUpperConfidenceBound,
)
from botorch_calib.posteriors import CalibratedPosterior


class CalibratedValueAtRisk(CalibratedUpperConfidenceBound):
    """The outcome that is exceeded with probability ``alpha``: value at risk.

    With ``alpha = 0.9`` the 10 % quantile of an observation. It is `CalibratedUpperConfidenceBound`
    at the level ``1 - alpha``, of the outcome whether the model denoises or not, since it is the
    outcome whose risk is meant and whose quantiles are calibrated.

    Args:
        model: Model with one output whose posterior is a `CalibratedPosterior`, such as a
            `CalibratedModel`.
        alpha: The risk level, in (0, 1): the probability of a better outcome. As in
            ``botorch.acquisition.risk_measures.VaR``.
        posterior_transform: Affine transform of the single outcome, if any.
        maximize: Whether large outcomes are good. If False the outcome is a loss, and the value is
            minus its ``alpha``-quantile.
        X_pending: Points under evaluation, ``n x d``, whose outcomes are averaged over: the value
            is the value at risk that is to be expected once they are known.
        num_fantasies: Number of fantasies of the outcomes at pending points.

    Raises:
        UnsupportedError: If the model has several outputs, or batch dimensions together with
            pending points, or its posterior is not a calibrated one or, by its input transform,
            of several points for each (when evaluated).
        InputDataError: If ``alpha`` is outside (0, 1) or ``num_fantasies`` is not a positive
            integer.
    """

    _of_observation = True

    def __init__(
        self,
        model: Model,
        alpha: float = 0.9,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        self.alpha = check_open_unit("alpha", alpha)
        super().__init__(
            model,
            level=1.0 - self.alpha,
            posterior_transform=posterior_transform,
            maximize=maximize,
            X_pending=X_pending,
            num_fantasies=num_fantasies,
        )


class CalibratedConditionalValueAtRisk(CalibratedAcquisitionFunction):
    """The mean of the worst outcomes, those with a total probability of ``1 - alpha``.

    With ``alpha = 0.9`` the mean of an observation that is below its 10 % quantile
    (`CalibratedPosterior.conditional_mean_below`). It is never above `CalibratedValueAtRisk`, and
    unlike that it tells how bad the bad outcomes are.

    Args:
        model: Model with one output whose posterior is a `CalibratedPosterior`, such as a
            `CalibratedModel`; the value is of the outcome whether the model denoises or not.
        alpha: The risk level, in (0, 1): the probability of a better outcome. As in
            ``botorch.acquisition.risk_measures.CVaR``.
        posterior_transform: Affine transform of the single outcome, if any.
        maximize: Whether large outcomes are good. If False the outcome is a loss, and the value is
            minus its mean above the ``alpha``-quantile.
        X_pending: Points under evaluation, ``n x d``, whose outcomes are averaged over: the value
            is the one that is to be expected once they are known.
        num_fantasies: Number of fantasies of the outcomes at pending points.

    Raises:
        UnsupportedError: If the model has several outputs, or batch dimensions together with
            pending points, or its posterior is not a calibrated one or, by its input transform,
            of several points for each (when evaluated).
        InputDataError: If ``alpha`` is outside (0, 1) or ``num_fantasies`` is not a positive
            integer.
    """

    _of_observation = True

    def __init__(
        self,
        model: Model,
        alpha: float = 0.9,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        self.alpha = check_open_unit("alpha", alpha)
        super().__init__(
            model,
            posterior_transform=posterior_transform,
            maximize=maximize,
            X_pending=X_pending,
            num_fantasies=num_fantasies,
        )

    def _value(self, posterior: CalibratedPosterior) -> Tensor:
        return posterior.conditional_mean_below(1.0 - self.alpha)
