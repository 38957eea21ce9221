"""Acquisition functions for contexts that nobody controls, and whose law is known roughly.

A decision ``x`` is judged by the worst expectation of a function ``u(x, c)`` over a set of laws of
the context ``c``, `botorch_calib.robust`'s ambiguity sets. The functions take decisions alone,
``b x 1 x d_x``; the columns of contexts are filled in for the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.objective import PosteriorTransform
from botorch.models.model import Model
from torch import Tensor

from botorch_calib._validation import check_nonnegative
from botorch_calib.acquisition.context_arguments import (
    check_contextual_model,
    check_no_batch,
    closed_form_state,
    context_scale,
    one_number,
)
from botorch_calib.acquisition.robust_base import ContextRobustFunction
from botorch_calib.models.inspection import predicting_part
from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.gp.closed_form_bound import ClosedFormConfidenceBound, confidence_bound
from botorch_calib.robust.gp.contextual import Columns, ContextualFunction
from botorch_calib.robust.gp.fallback import PointwiseFunction, pairs_per_chunk
from botorch_calib.robust.sets.base import AmbiguitySet
from botorch_calib.robust.sets.wasserstein import WassersteinBall


class RobustAcquisition(ContextRobustFunction):
    """The worst case of any acquisition function of single joint inputs over an ambiguity set.

    The function is evaluated at all pairs of decisions and contexts, in chunks ``N x 1 x d``. So a
    robust version of a calibrated acquisition function, for example, is

        >>> quantile = CalibratedUpperConfidenceBound(model, level=0.9)
        >>> acqf = RobustAcquisition(quantile, TotalVariationBall(0.1), contexts)

    Expectations are of the function's values as they are: of a logarithm they are expected
    logarithms, a cautious average in which the contexts without hope of improvement dominate.

    Args:
        acquisition: Maps ``N x 1 x d`` to values ``N``, row by row, to be maximised. (If the set
            needs gradients, the slope of the largest norm is computed by differences, since few
            acquisition functions are meant to be differentiated twice.)
        ambiguity: See `ContextRobustFunction`.
        contexts: See `ContextRobustFunction`.
        context_weights: See `ContextRobustFunction`.
        context_indices: See `ContextRobustFunction`.
        lipschitz_contexts: See `ContextRobustFunction`.
        X_pending: Refused; see `set_X_pending`.

    Raises:
        UnsupportedError: If the model of ``acquisition`` has batch dimensions without being an
            ensemble, or ``X_pending`` is given.
        InputDataError: See `ContextRobustFunction`.
        BotorchTensorDimensionError: See `ContextRobustFunction`.
    """

    def __init__(
        self,
        acquisition: AcquisitionFunction,
        ambiguity: AmbiguitySet,
        contexts: ContextDistribution | Tensor,
        context_weights: Tensor | None = None,
        context_indices: Sequence[int] | None = None,
        lipschitz_contexts: Tensor | None = None,
        X_pending: Tensor | None = None,
    ) -> None:
        model = getattr(acquisition, "model", None)
        check_no_batch(type(self).__name__, model)
        super().__init__(
            model,
            ambiguity,
            contexts,
            context_weights,
            context_indices,
            lipschitz_contexts,
        )
        self.acquisition = acquisition
        self.set_X_pending(X_pending)

    def _build(self, columns: Columns) -> ContextualFunction:
        others = self.lipschitz_contexts
        points = self.contexts.points if others is None else others
        scale = context_scale(self.model, columns, points)
        return PointwiseFunction(self.acquisition, columns, scale, pairs_per_chunk(self.model))

    def _basis(self) -> tuple[object, ...]:
        return self.acquisition, self.contexts, self.lipschitz_contexts


class RobustUpperConfidenceBound(ContextRobustFunction):
    """The worst case of an upper confidence bound over an ambiguity set of laws of the context.

    On exact Gaussian processes with a stationary radial kernel (see
    `botorch_calib.robust.gp.stationary.is_stationary`), also as a `CensoredDelayModel`, the bound
    comes in closed form: value and gradient at all pairs cost one product of their covariances
    with the inverse of the training covariance, which is computed once, and anew after the model
    has changed. Any other model is evaluated by its posterior.

    With ``beta`` as in BoTorch the bound is ``mu + sqrt(beta) sigma``. The methods of the paper
    [Micheli2025wdrbo] take ``beta=2.25``: ``WassersteinBall(radius, "lipschitz")`` is WDRBO, and
    with radius 0 ERBO; `ContextDistribution.kde` makes that SBO-KDE, and with `TotalVariationBall`
    DRBO-KDE; `MMDBall` is DRBO-MMD, with its approximation DRBO-MMD minimax; `WorstCase` is
    StableOpt.

    Args:
        model: A model with one output and no batch dimensions.
        beta: Factor of the variance, at least 0, a number or a tensor with one element.
        ambiguity: See `ContextRobustFunction`.
        contexts: See `ContextRobustFunction`.
        context_weights: See `ContextRobustFunction`.
        context_indices: See `ContextRobustFunction`.
        lipschitz_contexts: See `ContextRobustFunction`.
        maximize: If False, minus the largest expectation of the lower bound, the worst case of
            ``-mu + sqrt(beta) sigma``.
        posterior_transform: Affine transform of the single outcome, if any; it rules out the
            closed form.
        X_pending: Refused; see `set_X_pending`.

    Raises:
        UnsupportedError: If the model has several outputs, is an ensemble or has batch dimensions,
            or ``X_pending`` is given.
        InputDataError: If ``beta`` is negative or not finite, or see `ContextRobustFunction`.
        BotorchTensorDimensionError: See `ContextRobustFunction`.
    """

    def __init__(
        self,
        model: Model,
        beta: float | Tensor,
        ambiguity: AmbiguitySet,
        contexts: ContextDistribution | Tensor,
        context_weights: Tensor | None = None,
        context_indices: Sequence[int] | None = None,
        lipschitz_contexts: Tensor | None = None,
        maximize: bool = True,
        posterior_transform: PosteriorTransform | None = None,
        X_pending: Tensor | None = None,
    ) -> None:
        check_contextual_model(type(self).__name__, model)
        super().__init__(
            model, ambiguity, contexts, context_weights, context_indices, lipschitz_contexts
        )
        self.beta = check_nonnegative("beta", one_number("beta", beta))
        self.maximize = maximize
        self.posterior_transform = posterior_transform
        self.set_X_pending(X_pending)
        if self._known_columns is not None:
            self._function(None)  # the factorisation, once

    def _build(self, columns: Columns) -> ContextualFunction:
        part = predicting_part(self.model)
        model = part if ClosedFormConfidenceBound.supports(part) else self.model
        sign = 1.0 if self.maximize else -1.0
        beta = torch.tensor(self.beta, dtype=torch.double)
        return confidence_bound(model, columns, beta, sign, self.posterior_transform)

    def _basis(self) -> tuple[object, ...]:
        part = predicting_part(self.model)
        own = (self.beta, self.maximize), self.posterior_transform, self.model
        if not ClosedFormConfidenceBound.supports(part):
            return *own, part  # which is asked for its posterior as it is then
        return *own, *part.modules(), *closed_form_state(part)


class WassersteinUpperConfidenceBound(RobustUpperConfidenceBound):
    """Wasserstein distributionally robust upper confidence bound [Micheli2025wdrbo, eq. 13].

    ``sum_i w_i u(x, c_i) - radius * max_c |grad_c u(x, c)|_2`` with ``u = mu + sqrt(beta) sigma``:
    a lower bound of the expectation of ``u`` under any law within the radius in the Wasserstein
    distance of order 1, if the maximum is over all contexts. (NB the paper's factor multiplies
    ``sigma``: its 1.5 is ``beta=2.25``. Its published code leaves the second term out of the
    gradient; here the gradient is the true one.)

    Args:
        model: A model with one output and no batch dimensions.
        beta: Factor of the variance, at least 0, a number or a tensor with one element.
        radius: That of the `WassersteinBall`, in units of the contexts: a number of at least 0, a
            tensor with one element, or a schedule such as `RadiusSchedule`, which is called once,
            with the number of observations of the model. With 0 this is ERBO.
        contexts: See `ContextRobustFunction`.
        context_weights: See `ContextRobustFunction`.
        context_indices: See `ContextRobustFunction`.
        lipschitz_contexts: See `ContextRobustFunction`.
        maximize: If False, the same for ``-mu + sqrt(beta) sigma``.
        posterior_transform: Affine transform of the single outcome, if any; it rules out the
            closed form.
        X_pending: Refused; see `set_X_pending`.

    Raises:
        UnsupportedError: If the model has several outputs, is an ensemble or has batch dimensions,
            or ``X_pending`` is given.
        InputDataError: If ``beta`` or ``radius`` is negative or not finite, or see
            `ContextRobustFunction`.
        BotorchTensorDimensionError: See `ContextRobustFunction`.

    .. [Micheli2025wdrbo]
        F. Micheli, E. C. Balta, A. Tsiamis, J. Lygeros. Wasserstein distributionally robust
        Bayesian optimization with continuous context. 2025.
    """

    def __init__(
        self,
        model: Model,
        beta: float | Tensor,
        radius: float | Tensor | Callable[[int], float],
        contexts: ContextDistribution | Tensor,
        context_weights: Tensor | None = None,
        context_indices: Sequence[int] | None = None,
        lipschitz_contexts: Tensor | None = None,
        maximize: bool = True,
        posterior_transform: PosteriorTransform | None = None,
        X_pending: Tensor | None = None,
    ) -> None:
        super().__init__(
            model,
            beta,
            WassersteinBall(radius, method="lipschitz"),
            contexts,
            context_weights,
            context_indices,
            lipschitz_contexts,
            maximize,
            posterior_transform,
            X_pending,
        )

    @property
    def radius(self) -> float:
        """The radius of the ball."""
        return self.ambiguity.radius  # type: ignore[attr-defined]
