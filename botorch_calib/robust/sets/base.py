"""Base classes of ambiguity sets: `AmbiguitySet`, and `Ball` for sets with a radius."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from torch import Tensor

from botorch_calib._validation import (
    check_count,
    check_finite,
    check_instance,
    check_nonnegative,
    check_tensor,
)
from botorch_calib.robust.contexts import ContextDistribution
from botorch_calib.robust.contextual_function import ContextualFunction

#: Values that exceed the smallest value by less than this fraction of the range count as smallest.
TIED = 1e-100


class AmbiguitySet:
    r"""A set of distributions of the context, over which the worst expectation is taken.

    Let ``u`` be the values of a function to be maximised at the ``M`` atoms of the centre, which is
    a `ContextDistribution` with weights ``w``.
    `worst_case` is the smallest expectation ``sum_i p_i u_i`` over the distributions ``p`` of the
    set, and `worst_case_weights` is a distribution that attains it. Acquisition functions call
    `evaluate`, which returns worst cases of a function of decisions and contexts.

    * **Gradient.** By Danskin's theorem the gradient with respect to ``u`` is the minimiser ``p``.
      If there are several minimisers, each is a subgradient. Only first derivatives are correct.
    * **Precision.** The minimiser is computed in float64 from ``(u - min u) / (max u - min u)``, so
      neither the level nor the scale of ``u`` matters. For constant ``u`` the minimiser is ``w``.
    * **Batches.** All rows of ``u`` are solved together, independently of each other.

    **To define a set**, write a subclass with a method ``_solve(u, contexts)`` that returns the
    minimisers ``b x M`` for values ``b x M``. A set that needs more than the function's values at
    the atoms overrides `evaluate` instead.

    Example:
        >>> class MeanSlopePenalty(AmbiguitySet):
        ...     def evaluate(self, function, X, contexts):
        ...         values = function(X, contexts.points)
        ...         norms = function.gradient_norms(X, contexts.points)
        ...         return contexts.expectation(values - 0.1 * norms)
        >>> samples = torch.rand(20, 1, dtype=torch.double)
        >>> acqf = RobustUpperConfidenceBound(gp, 2.25, MeanSlopePenalty(), samples)
    """

    # Whether every distribution in the set puts mass only on atoms that have positive weight in the
    # centre.
    _keeps_support: bool = False

    @property
    def is_scheduled(self) -> bool:
        """Whether the set depends on the number of context samples, so that `at` must be called."""
        return False

    def at(self, t: int) -> Self:
        """The set after ``t >= 1`` samples of the context: ``self`` unless it `is_scheduled`."""
        return self

    def evaluate(
        self, function: ContextualFunction, X: Tensor, contexts: ContextDistribution
    ) -> Tensor:
        """Worst cases ``b`` of a function to be maximised, at decisions ``X``, ``b x d_x``.

        The result is differentiable in ``X``. ``contexts`` is the centre of the set, in the dtype
        and on the device of ``X``.
        """
        # Values are not checked, since a check would synchronize with the device. NaN among the
        # values gives a worst case of NaN.
        return self._worst_case(function(X, contexts.points), contexts)

    def worst_case(self, values: Tensor, contexts: ContextDistribution) -> Tensor:
        """Smallest expectations over the set, of shape ``...``, differentiable in ``values``.

        Args:
            values: Values of the function to be maximised at the atoms, ``... x M``.
            contexts: The centre of the set, with ``M`` atoms.

        Raises:
            BotorchTensorDimensionError, InputDataError: If ``values`` is malformed.
            UnsupportedError: If the set needs more than the values at the atoms: use `evaluate`.
        """
        check_values(values, contexts)
        return self._worst_case(values, contexts)

    def _worst_case(self, values: Tensor, contexts: ContextDistribution) -> Tensor:
        return torch.linalg.vecdot(self._minimiser(values, contexts), values)

    def worst_case_weights(self, values: Tensor, contexts: ContextDistribution) -> Tensor:
        """Probabilities of the atoms that attain `worst_case`, in the shape of ``values``.

        The arguments and errors are those of `worst_case`. The result is not differentiable.
        """
        check_values(values, contexts)
        return self._minimiser(values, contexts)

    def __repr__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self._arguments().items())
        return f"{type(self).__name__}({arguments})"

    def _arguments(self) -> dict[str, Any]:
        """The constructor arguments that `__repr__` shows, by name."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    @torch.no_grad()
    def _minimiser(self, values: Tensor, contexts: ContextDistribution) -> Tensor:
        """Weights ``... x M`` whose product with ``values`` is the worst case."""
        contexts = contexts.to(torch.double, values.device)
        u = values.detach().double().reshape(-1, contexts.num_points)
        if self._keeps_support and len(kept := contexts.support()) < contexts.num_points:
            # Divergences divide by the weights, so `_solve` receives only atoms of positive weight.
            within = contexts.memo(
                "within", lambda: ContextDistribution(contexts.points[kept], contexts.weights[kept])
            )
            weights = torch.zeros_like(u)
            weights[:, kept] = self._minimiser(u[:, kept], within)
        else:
            # Affine scaling keeps the minimiser, and makes tolerances independent of units.
            low, high = u.aminmax(dim=-1, keepdim=True)
            varies = high > low
            scaled = (u - low) / torch.where(varies, high - low, 1.0)
            # Squares and reciprocals of numbers below `TIED` would underflow or overflow in
            # float64, so these numbers become 0.
            scaled = torch.where(scaled < TIED, 0.0, scaled)
            weights = torch.where(varies, self._solve(scaled, contexts), contexts.weights)
        return weights.to(values.dtype).reshape(values.shape)

    def _solve(self, u: Tensor, contexts: ContextDistribution) -> Tensor:
        """Minimisers ``b x M`` for values ``u``, ``b x M`` in float64, with rows that span [0, 1].

        If ``_keeps_support`` is True, all weights of ``contexts`` are positive. The result for a
        constant row is not used.
        """
        raise UnsupportedError(
            f"{self!r} is not determined by values at the atoms of the contexts: call `evaluate`."
        )


class Ball(AmbiguitySet):
    """An ambiguity set of all distributions within a radius of the centre.

    Args:
        radius: A number of at least 0, a tensor with one element, or a schedule: a function of the
            number ``t`` of context samples such as `RadiusSchedule`. ``at(t)`` returns the ball
            after ``t`` samples; acquisition functions call `at` themselves.
    """

    def __init__(self, radius: float | Tensor | Callable[[int], float]) -> None:
        self._radius = radius if callable(radius) else check_nonnegative("radius", radius)

    @property
    def radius(self) -> float:
        """The radius; raises `UnsupportedError` for a schedule."""
        if callable(self._radius):
            raise UnsupportedError(
                f"The `radius` of {self!r} is a schedule: call `.at(t)`, with the number `t` of "
                "context samples, for a ball that can be evaluated."
            )
        return self._radius

    @property
    def is_scheduled(self) -> bool:
        return callable(self._radius)

    def at(self, t: int) -> Self:
        t = check_count("t", t)
        if not callable(self._radius):
            return self
        ball = copy(self)
        ball._radius = check_nonnegative("radius", self._radius(t))
        return ball

    def _arguments(self) -> dict[str, Any]:
        return {"radius": self._radius, **super()._arguments()}


@dataclass(frozen=True)
class RadiusSchedule:
    """The radius ``c / sqrt(t)`` after ``t`` samples, which decreases like sampling errors.

    Every ball accepts a schedule as ``radius``, such as ``TotalVariationBall(RadiusSchedule(1))``.

    Attributes:
        c: Radius at ``t = 1``, in units of the contexts if the ball is a Wasserstein ball. The
            experiments of [Micheli2025wdrbo] use 0.3 for contexts in a unit cube.

    Example:
        >>> RadiusSchedule(0.3)(4)
        0.15
        >>> ball = WassersteinBall(RadiusSchedule(0.3))
    """

    c: float = 0.3

    def __post_init__(self) -> None:
        check_nonnegative("c", self.c)

    def __call__(self, t: int) -> float:
        """Radius after ``t >= 1`` samples of the context."""
        return self.c / math.sqrt(check_count("t", t))


def check_values(values: Tensor, contexts: ContextDistribution) -> None:
    """Raise an error unless ``values`` are finite numbers, ``... x M``, for ``M`` atoms."""
    check_instance("contexts", contexts, ContextDistribution)
    if check_tensor("values", values).dim() == 0 or values.shape[-1] != contexts.num_points:
        raise BotorchTensorDimensionError(
            f"`values` must have shape ... x {contexts.num_points}, one for each atom of "
            f"`contexts`, got {tuple(values.shape)}."
        )
    if not values.dtype.is_floating_point:
        raise InputDataError(f"`values` must be floating-point, got {values.dtype}.")
    check_finite("values", values)
