"""Closed-form acquisition functions of a calibrated posterior (``q = 1``).

Pending points are handled by fantasies: the model is conditioned on a fixed set of quasi-random
outcomes at the pending points, drawn from its own calibrated distribution of observations, and
the acquisition function is averaged over them. For joint batches (``q > 1``) use BoTorch's Monte
Carlo acquisition functions.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, TypeVar

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import BotorchTensorDimensionError, UnsupportedError
from botorch.models.model import Model
from botorch.utils.safe_math import logmeanexp
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from botorch_calib._validation import (
    check_count,
    check_model,
    check_numbers,
    check_open_unit,
    check_pending_inputs,
)
from botorch_calib.acquisition.fantasies import fantasy_models
from botorch_calib.models.inspection import sole_member
from botorch_calib.models.requirements import check_one_value_each
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.posteriors.calibrated import broadcasts_to


class CalibratedAcquisitionFunction(AcquisitionFunction, ABC):
    """Base class: evaluates the calibrated posterior, averages over pending points.

    Args:
        model: Model whose posterior is a `CalibratedPosterior`, such as a `CalibratedModel`.
        posterior_transform: Affine transform of the single outcome, if any.
        maximize: Whether the objective is maximised.
        X_pending: Points under evaluation, ``n x d``.
        num_fantasies: Number of fantasies of the outcomes at pending points.

    Raises:
        UnsupportedError: If the model has several outputs, or batch dimensions together with
            pending points, or its posterior is not a calibrated one or, by its input transform,
            of several points for each (when evaluated).
        InputDataError: If ``num_fantasies`` is not a positive integer.
    """

    # Whether the values are logarithms, which fantasies have to be averaged as.
    _log: bool = False
    # Whether they are of an observation, also where the model's posterior is of the objective.
    _of_observation: bool = False

    def __init__(
        self,
        model: Model,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        model = sole_member(check_model(model))
        super().__init__(model=model)
        if model.num_outputs != 1:
            raise UnsupportedError(
                f"{type(self).__name__} needs a model with one output, got {model.num_outputs}."
            )
        self.posterior_transform = posterior_transform
        self.maximize = maximize
        self.num_fantasies = check_count("num_fantasies", num_fantasies)
        self._fantasy_model: Any = None
        self.set_X_pending(X_pending)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Account for points under evaluation by averaging over fantasies of their outcomes.

        Args:
            X_pending: ``n x d``, or None to clear them.

        Raises:
            BotorchTensorDimensionError: If it does not have the shape ``n x d``.
            InputDataError: If it holds NaN or infinite values.
        """
        X_pending = check_pending_inputs(X_pending)
        fantasy_model = None
        if X_pending is not None:  # before anything changes, as it may raise
            (fantasy_model,) = fantasy_models([self.model], X_pending, self.num_fantasies)
        super().set_X_pending(X_pending)
        self._fantasy_model = fantasy_model

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the acquisition function.

        Args:
            X: ``b x 1 x d``.

        Returns:
            Values of shape ``b``.
        """
        if self._fantasy_model is None:
            return self._value(self._posterior(self.model, X)).squeeze(-1).squeeze(-1)
        # The fantasies are the model's batch dimension: b x 1 x 1 x d against num_fantasies.
        posterior = self._posterior(self._fantasy_model, X.unsqueeze(-3))
        values = self._value(posterior).squeeze(-1).squeeze(-1)
        return logmeanexp(values, dim=-1) if self._log else values.mean(dim=-1)

    def _posterior(self, model: Model, X: Tensor) -> CalibratedPosterior:
        """Posterior of what is to be maximised."""
        posterior = model.posterior(
            X,
            observation_noise=self._of_observation,
            posterior_transform=self.posterior_transform,
        )
        if not isinstance(posterior, CalibratedPosterior):
            raise UnsupportedError(
                f"{type(self).__name__} needs a calibrated posterior, such as that of a "
                f"CalibratedModel; {type(model).__name__} gave a {type(posterior).__name__}."
            )
        check_one_value_each(posterior._extended_shape()[-2], X, type(self).__name__)
        return posterior if self.maximize else posterior.affine(-1.0)

    @abstractmethod
    def _value(self, posterior: CalibratedPosterior) -> Tensor:
        """Values ``batch_shape x 1 x 1`` for a posterior that is to be maximised."""


class _ImprovementFunction(CalibratedAcquisitionFunction):
    """Acquisition functions that measure improvement over an incumbent.

    Args:
        model: Model with one output whose posterior is a `CalibratedPosterior`, such as a
            `CalibratedModel`.
        best_f: Value to improve upon, in units of the outcome: a scalar, or of shape ``b``.
        posterior_transform: Affine transform of the single outcome, if any; ``best_f`` is on
            its scale.
        maximize: Whether the objective is maximised, so that improvement is upwards.
        X_pending: Points under evaluation, ``n x d``, whose outcomes are averaged over.
        num_fantasies: Number of fantasies of the outcomes at pending points.

    Raises:
        UnsupportedError: If the model has several outputs, or batch dimensions together with
            pending points, or its posterior is not a calibrated one or, by its input transform,
            of several points for each (when evaluated).
        InputDataError: If ``best_f`` is no number, NaN or empty, or ``num_fantasies`` is not a
            positive integer.
        BotorchTensorDimensionError: If ``best_f`` does not broadcast to ``b`` (when evaluated).
    """

    best_f: Tensor

    def __init__(
        self,
        model: Model,
        best_f: float | Tensor,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        super().__init__(
            model,
            posterior_transform=posterior_transform,
            maximize=maximize,
            X_pending=X_pending,
            num_fantasies=num_fantasies,
        )
        self.register_buffer("best_f", check_numbers("best_f", best_f))

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Account for points under evaluation; each fantasy has an incumbent of its own.

        Args:
            X_pending: ``n x d``, or None to clear them.
        """
        super().set_X_pending(X_pending)
        self._fantasy_best: Tensor | None = None
        if self._fantasy_model is not None and self.X_pending is not None:
            # An outcome carries noise, so the incumbent of a fantasy is a posterior mean.
            with torch.no_grad():
                mean = self._posterior(self._fantasy_model, self.X_pending).mean
                self._fantasy_best = mean.squeeze(-1).amax(dim=-1)

    def _incumbent(self, posterior: CalibratedPosterior) -> Tensor:
        """Value to improve upon, broadcasting against ``batch_shape x 1 x 1``."""
        best = self.best_f if self.maximize else -self.best_f
        return incumbent(best, self._fantasy_best, posterior)


def incumbent(
    best_f: Tensor, fantasy_best: Tensor | None, posterior: CalibratedPosterior
) -> Tensor:
    """The value to improve upon at each point, with an incumbent for each fantasy.

    Args:
        best_f: The best value so far (maximisation), a scalar or of shape ``b``.
        fantasy_best: The best one in each fantasy of pending points, or None without such.
        posterior: The posterior at the points, ``batch_shape x 1 x 1``.

    Returns:
        Values that broadcast against ``batch_shape x 1 x 1``.

    Raises:
        BotorchTensorDimensionError: If ``best_f`` has another shape.
    """
    best, shape = best_f.to(posterior._location), posterior._location.shape
    if fantasy_best is not None:
        best = torch.maximum(best.unsqueeze(-1), fantasy_best.to(best))
    best = best.unsqueeze(-1).unsqueeze(-1)
    if not broadcasts_to(best.shape, shape):
        points = tuple(shape[:-2] if fantasy_best is None else shape[:-3])
        raise BotorchTensorDimensionError(
            f"`best_f` of shape {tuple(best_f.shape)} does not broadcast to that of the points, "
            f"{points}."
        )
    return best


_Class = TypeVar("_Class", bound=type[_ImprovementFunction])


def _with_arguments(cls: _Class) -> _Class:
    """Append to a class's docstring the arguments and errors of `_ImprovementFunction`."""
    own, shared = (inspect.cleandoc(c.__doc__ or "") for c in (cls, _ImprovementFunction))
    cls.__doc__ = f"{own}\n\nArgs:{shared.partition('Args:')[2]}"
    return cls


@_with_arguments
class CalibratedExpectedImprovement(_ImprovementFunction):
    """Calibrated expected improvement ``E(f~ - best_f)+`` [Kim2024locbo, eq. 31].

    ``f~`` has the calibrated distribution of the objective. In closed form; prefer
    `LogCalibratedExpectedImprovement` for optimisation.
    """

    def _value(self, posterior: CalibratedPosterior) -> Tensor:
        return posterior.expected_improvement(self._incumbent(posterior))


@_with_arguments
class LogCalibratedExpectedImprovement(_ImprovementFunction):
    """Logarithm of the calibrated expected improvement, with gradients where that underflows.

    The counterpart of BoTorch's ``LogExpectedImprovement``.
    """

    _log = True

    def _value(self, posterior: CalibratedPosterior) -> Tensor:
        return posterior.log_expected_improvement(self._incumbent(posterior))


@_with_arguments
class CalibratedProbabilityOfImprovement(_ImprovementFunction):
    """Calibrated probability of improvement ``P(f~ > best_f)``.

    ``f~`` has the calibrated distribution of the objective.
    """

    def _value(self, posterior: CalibratedPosterior) -> Tensor:
        return posterior.probability_of_improvement(self._incumbent(posterior))


class CalibratedUpperConfidenceBound(CalibratedAcquisitionFunction):
    """The ``level``-quantile of the calibrated distribution: an upper confidence bound.

    Where BoTorch's ``UpperConfidenceBound`` takes a multiple of the standard deviation, this
    takes a probability. The quantile is that of the objective unless the model was made with
    ``denoise=False``. What calibrators keep true is the quantile of an observation, at the levels
    that they learn.

    Args:
        model: Model with one output whose posterior is a `CalibratedPosterior`, such as a
            `CalibratedModel`.
        level: Level of the quantile, in (0, 1).
        posterior_transform: Affine transform of the single outcome, if any.
        maximize: Whether the objective is maximised. If False the value is minus the
            ``1 - level`` quantile (a lower confidence bound).
        X_pending: Points under evaluation, ``n x d``, whose outcomes are averaged over.
        num_fantasies: Number of fantasies of the outcomes at pending points.

    Raises:
        UnsupportedError: If the model has several outputs, or batch dimensions together with
            pending points, or its posterior is not a calibrated one or, by its input transform,
            of several points for each (when evaluated).
        InputDataError: If ``level`` is outside (0, 1) or ``num_fantasies`` is not a positive
            integer.
    """

    def __init__(
        self,
        model: Model,
        level: float = 0.9,
        posterior_transform: PosteriorTransform | None = None,
        maximize: bool = True,
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        check_open_unit("level", level)
        super().__init__(
            model,
            posterior_transform=posterior_transform,
            maximize=maximize,
            X_pending=X_pending,
            num_fantasies=num_fantasies,
        )
        self.level = float(level)

    def _value(self, posterior: CalibratedPosterior) -> Tensor:
        return posterior.quantile(self.level)
