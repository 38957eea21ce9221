"""Acquisition functions for contexts that nobody controls, and whose law is known roughly.

A decision ``x`` is judged by the worst expectation of a function ``u(x, c)`` over a set of laws of
the context ``c``, `botorch_calib.robust`'s ambiguity sets. The functions take decisions alone,
``b x 1 x d_x``; the columns of contexts are filled in for the model.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from botorch_calib._validation import check_inputs, check_nonnegative
from botorch_calib.acquisition.context_arguments import (
    check_contextual_model,
    check_no_batch,
    closed_form_state,
    context_law,
    context_scale,
    num_observations,
    one_number,
    same_basis,
)
from botorch_calib.acquisition.delayed import input_width
from botorch_calib.models.bases import predicting_part
from botorch_calib.robust.base import AmbiguitySet
from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.contextual import Columns, ContextualFunction
from botorch_calib.robust.fallback import PointwiseFunction, pairs_per_chunk
from botorch_calib.robust.ucb import ClosedFormConfidenceBound, confidence_bound
from botorch_calib.robust.wasserstein import WassersteinBall


class ContextRobustFunction(AcquisitionFunction, ABC):
    """Base class: the worst case of a contextual function over an ambiguity set.

    A subclass says by `_build` what the function is.

    Args:
        model: The model of the function, if there is one.
        ambiguity: The set of laws.
        contexts: The centre of the set: a `ContextDistribution`, or contexts ``M x d_c``, of which
            equal ones are merged.
        context_weights: Probabilities ``M`` of contexts that are given as a tensor (default: equal
            ones).
        context_indices: Columns of the contexts among those of the joint inputs, in the order of
            the contexts' own columns (default: the last ``d_c``).
        lipschitz_contexts: Contexts ``M' x d_c`` over which ``WassersteinBall(method="lipschitz")``
            takes the largest gradient norm (default: all atoms of ``contexts``). They cost a second
            evaluation.

    Raises:
        InputDataError: If contexts or weights are not finite, weights are negative or do not sum
            to 1, or ``context_indices`` are not ``d_c`` different columns.
        BotorchTensorDimensionError: If a shape is wrong.
    """

    lipschitz_contexts: Tensor | None

    def __init__(
        self,
        model: Model | None,
        ambiguity: AmbiguitySet,
        contexts: ContextDistribution | Tensor,
        context_weights: Tensor | None = None,
        context_indices: Sequence[int] | None = None,
        lipschitz_contexts: Tensor | None = None,
    ) -> None:
        super().__init__(model=model)  # type: ignore[arg-type]
        self.ambiguity = ambiguity
        self.contexts = context_law(contexts, context_weights)
        self.context_indices = (
            None if context_indices is None else [int(i) for i in context_indices]
        )
        num_contexts = self.contexts.points.shape[-1]
        if lipschitz_contexts is not None:
            check_inputs("lipschitz_contexts", lipschitz_contexts, num_contexts)
            if len(lipschitz_contexts) == 0:
                raise InputDataError("`lipschitz_contexts` is empty.")
            lipschitz_contexts = lipschitz_contexts.detach().clone()
        self.register_buffer("lipschitz_contexts", lipschitz_contexts)
        self._cache: tuple[tuple[object, ...], ContextualFunction] | None = None
        self.num_columns = None if model is None else input_width(model)
        # The columns are checked at once where their number is known.
        self._known_columns = None if self.num_columns is None else self._columns(self.num_columns)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Refuse pending points: their contexts are not known here.

        Args:
            X_pending: None, or an empty tensor.

        Raises:
            UnsupportedError: Otherwise.
        """
        if X_pending is not None and X_pending.shape[-2:-1] != (0,):
            raise UnsupportedError(
                f"{type(self).__name__} does not take `X_pending`, which lacks the contexts. "
                "Condition the model on decisions and contexts under evaluation instead: "
                "CensoredDelayModel(model, X_pending, ...)."
            )
        super().set_X_pending(None)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the worst case.

        Args:
            X: Decisions ``b x 1 x d_x``.

        Returns:
            Values of shape ``b``.
        """
        law = self.contexts.to(X.dtype, X.device)
        self._check_width(X, law)
        rows = X.reshape(-1, X.shape[-1])
        return self._worst_case(self._function(X), rows, law).reshape(X.shape[:-2])

    def _worst_case(
        self, function: ContextualFunction, rows: Tensor, law: ContextDistribution
    ) -> Tensor:
        """Worst cases ``b`` at decisions ``b x d_x``."""
        ball = self.ambiguity
        if not (isinstance(ball, WassersteinBall) and ball.needs_gradients):
            return ball.worst_case(function(rows, law.points), law)
        if ball.radius == 0.0:
            return law.expectation(function(rows, law.points))
        others = self.lipschitz_contexts
        values, steepness = function.with_steepness(
            rows, law.points, None if others is None else others.to(rows)
        )
        return ball.lipschitz_bound(law.expectation(values), steepness)

    def _check_width(self, X: Tensor, law: ContextDistribution) -> None:
        if self.num_columns is None:
            return
        width = self.num_columns - law.points.shape[-1]
        if X.shape[-1] != width:
            raise BotorchTensorDimensionError(
                f"`X` must hold the {width} columns of decisions alone, got {tuple(X.shape)}."
            )

    def _columns(self, width: int) -> Columns:
        return Columns(width, self.contexts.points.shape[-1], self.context_indices)

    def _function(self, X: Tensor | None) -> ContextualFunction:
        """The function, from the cache unless the model has changed."""
        if self._cache is not None and same_basis(self._cache[0], self._basis()):
            return self._cache[1]
        columns = self._known_columns
        if columns is None:
            assert X is not None
            columns = self._columns(X.shape[-1] + self.contexts.points.shape[-1])
        function = self._build(columns)
        if self._known_columns is not None:
            # The basis afterwards, as evaluation mode replaces the model's training inputs.
            self._cache = self._basis(), function
        return function

    def _basis(self) -> tuple[object, ...]:
        """What `_function` depends on; see `same_basis`."""
        return ()

    @abstractmethod
    def _build(self, columns: Columns) -> ContextualFunction:
        """The function whose worst case is wanted."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cache": None}


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
        ambiguity: The set of laws.
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


class RobustUpperConfidenceBound(ContextRobustFunction):
    """The worst case of an upper confidence bound over an ambiguity set of laws of the context.

    On exact Gaussian processes with a stationary radial kernel (see
    `botorch_calib.robust.stationary.is_stationary`), also as a `CensoredDelayModel`, the bound
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
        ambiguity: The set of laws.
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
        radius: In units of the contexts, at least 0: a number, a tensor with one element, or a
            function of the number of observations of the model such as `RadiusSchedule`, called
            once. With 0 this is ERBO.
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
        if callable(radius) and not isinstance(radius, Tensor):
            radius = radius(num_observations(model))
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
