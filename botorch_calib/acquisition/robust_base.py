"""The base of robust acquisition functions: worst cases of functions of decision and context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.model import Model
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from botorch_calib._validation import check_inputs
from botorch_calib.acquisition.context_arguments import at_observations, context_law, same_basis
from botorch_calib.acquisition.delayed import input_width
from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.gp.contextual import Columns, ContextualFunction
from botorch_calib.robust.sets.base import AmbiguitySet
from botorch_calib.robust.sets.wasserstein import WassersteinBall


class ContextRobustFunction(AcquisitionFunction, ABC):
    """Base class: the worst case of a contextual function over an ambiguity set.

    A subclass says by `_build` what the function is.

    Args:
        model: The model of the function, if there is one.
        ambiguity: The set of laws. If its radius is a schedule, it is resolved at once, by
            ``ambiguity.at(t)`` with the number ``t`` of observations of the model, as each came
            with a context (the atoms of ``contexts`` may be fewer, where equal ones are merged, or
            draws). Pending points do not count, and observations that the model gets later change
            nothing. Give ``ambiguity.at(t)`` for another ``t``.
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
        UnsupportedError: If a radius is a schedule, and the model does not tell its number of
            observations.
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
        self.ambiguity = at_observations(ambiguity, model)
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

    @torch.no_grad()
    @t_batch_mode_transform(expected_q=1, assert_output_shape=False)  # type: ignore[arg-type]
    def worst_case_weights(self, X: Tensor) -> Tensor:
        """The laws of the context that decisions are protected against, without a graph.

        The value at a decision is the expectation under its law: of the acquisition function, or
        of the confidence bound that is maximised. If several laws are worst, it is one of them.

        Args:
            X: Decisions ``b x 1 x d_x``.

        Returns:
            Probabilities ``b x M`` of the atoms ``self.contexts.points``.

        Raises:
            UnsupportedError: If the set is evaluated by a bound that no law attains, such as
                ``WassersteinBall(method="lipschitz")``; ``"exact"`` methods have a worst law.
        """
        law = self.contexts.to(X.dtype, X.device)
        self._check_width(X, law)
        values = self._function(X)(X.reshape(-1, X.shape[-1]), law.points)
        weights = self.ambiguity.worst_case_weights(values, law)
        return weights.reshape(*X.shape[:-2], law.num_points)

    def _worst_case(
        self, function: ContextualFunction, rows: Tensor, law: ContextDistribution
    ) -> Tensor:
        """Worst cases ``b`` at decisions ``b x d_x``."""
        ball = self.ambiguity
        if isinstance(ball, WassersteinBall) and ball.radius == 0.0:
            return law.expectation(function(rows, law.points))
        if not (isinstance(ball, WassersteinBall) and ball.needs_gradients):
            return ball.worst_case(function(rows, law.points), law)
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
