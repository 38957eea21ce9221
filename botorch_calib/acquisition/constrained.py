"""Closed-form acquisition functions under constraints on calibrated outcomes (``q = 1``).

Outcomes are modelled independently, each by a model of its own in a ``ModelList``, so that log
expected improvement and log probabilities of feasibility add up. Each factor is exact under the
distribution its model states: calibrated (the pieces of a `CalibratedPosterior`) or Gaussian (any
other model). BoTorch's ``LogConstrainedExpectedImprovement`` sees the moments of a posterior
alone, which far from feasibility is wrong by many orders of magnitude for a distribution that is
not normal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model, ModelList
from botorch.utils.safe_math import logmeanexp
from botorch.utils.transforms import t_batch_mode_transform
from torch import Tensor

from botorch_calib._validation import (
    check_columns,
    check_count,
    check_model,
    check_numbers,
    check_pending_inputs,
)
from botorch_calib.acquisition.calibrated import incumbent
from botorch_calib.acquisition.fantasies import fantasy_models
from botorch_calib.acquisition.incumbents import Limits
from botorch_calib.models.inspection import as_calibrated
from botorch_calib.models.requirements import check_one_value_each
from botorch_calib.posteriors import CalibratedPosterior


class _ConstrainedFunction(AcquisitionFunction):
    """What constrained functions share: checked limits, posteriors by outcome, pending points."""

    def __init__(
        self,
        model: Model,
        constraints: Mapping[int, Limits],
        X_pending: Tensor | None,
        num_fantasies: int,
    ) -> None:
        super().__init__(model=check_model(model))
        self.constraints = checked_constraints(constraints, model.num_outputs)
        self.num_fantasies = check_count("num_fantasies", num_fantasies)
        self._members = members_of(model)
        self._fantasies: dict[int, Any] | None = None
        self.set_X_pending(X_pending)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Account for points under evaluation by averaging over fantasies of their outcomes.

        Args:
            X_pending: ``n x d``, or None to clear them.

        Raises:
            BotorchTensorDimensionError: If it does not have the shape ``n x d``.
            InputDataError: If it holds NaN or infinite values.
            UnsupportedError: If a model has batch dimensions.
        """
        X_pending = check_pending_inputs(X_pending)
        fantasies = None
        if X_pending is not None:  # before anything changes, as it may raise
            models = [self._members[i] for i in self._outcomes]
            conditioned = fantasy_models(models, X_pending, self.num_fantasies)
            fantasies = dict(zip(self._outcomes, conditioned, strict=True))
        super().set_X_pending(X_pending)
        self._fantasies = fantasies

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        """Evaluate the acquisition function.

        Args:
            X: Points ``b x 1 x d``.

        Returns:
            Values of shape ``b``, logarithms.
        """
        if self._fantasies is None:
            return self._at({i: self._members[i] for i in self._outcomes}, X)
        # The fantasies are the models' batch dimension: b x 1 x 1 x d against num_fantasies.
        return logmeanexp(self._at(self._fantasies, X.unsqueeze(-3)), dim=-1)

    def _at(self, models: Mapping[int, Any], X: Tensor) -> Tensor:
        """The value at single points, of their batch shape."""
        posteriors = _posteriors(models, X)
        for posterior in posteriors.values():
            check_one_value_each(posterior._extended_shape()[-2], X, type(self).__name__)
        return self._log_value(posteriors).squeeze(-1).squeeze(-1)

    @property
    def _outcomes(self) -> list[int]:
        """The outcomes that the value depends on; others are not evaluated."""
        return list(self.constraints)

    def _log_value(self, posteriors: Mapping[int, CalibratedPosterior]) -> Tensor:
        """The value, ``batch_shape x 1 x 1``, from posteriors of the outcomes it depends on."""
        raise NotImplementedError

    def _log_feasibility(self, posteriors: Mapping[int, CalibratedPosterior]) -> Tensor:
        """Log probability that all constraints hold, ``batch_shape x q x 1``."""
        parts = [
            posteriors[i].log_probability_between(lower, upper)
            for i, (lower, upper) in self.constraints.items()
        ]
        return torch.stack(parts).sum(dim=0)


class LogCalibratedProbabilityOfFeasibility(_ConstrainedFunction):
    r"""Log probability that all constraints hold, ``sum_i log P(lower_i <= y_i <= upper_i)``.

    The counterpart of BoTorch's ``LogProbabilityOfFeasibility``, exact for calibrated outcomes.
    What is stated of outcome ``i`` is what its model states: the objective behind the noise, or
    with ``denoise=False`` an observation.

    Args:
        model: A ``ModelList`` of models with one output each, calibrated or plain Gaussian ones,
            or a single such model.
        constraints: ``{i: (lower, upper)}``, limits on outcome ``i`` in its units; None or
            infinity for no limit.
        X_pending: Points under evaluation, ``n x d``, whose outcomes are averaged over.
        num_fantasies: Number of fantasies of the outcomes at pending points.

    Raises:
        InputDataError: If there are no constraints, limits are crossed or NaN, or an index names no
            outcome or one that another names.
        UnsupportedError: If a model has several outputs or a posterior that is not Gaussian or, by
            its input transform, of several points for each (when evaluated).
    """

    def __init__(
        self,
        model: Model,
        constraints: Mapping[int, Limits],
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        super().__init__(model, constraints, X_pending, num_fantasies)

    def _log_value(self, posteriors: Mapping[int, CalibratedPosterior]) -> Tensor:
        return self._log_feasibility(posteriors)


class LogCalibratedConstrainedExpectedImprovement(_ConstrainedFunction):
    r"""Log expected improvement plus log probabilities of feasibility, exact if calibrated.

    ``log E(f~ - best_f)+ + sum_i log P(lower_i <= y_i <= upper_i)``: the expected improvement of a
    point that counts only if it is feasible, outcomes being independent (Gardner et al., Bayesian
    optimization with inequality constraints, 2014). The counterpart of BoTorch's
    ``LogConstrainedExpectedImprovement``, with its arguments.

    With pending points ``P`` the value is the mean over fantasies ``w`` of their outcomes,
    ``log E_w[E((f~ - best_w)+ | w) prod_i P(lower_i <= y_i <= upper_i | w)]``, and each fantasy has
    the incumbent that it would leave behind: ``best_w`` is the greatest of ``best_f`` and the
    posterior means of the objective at those points of ``P`` that are feasible in ``w``, which
    means with a probability above 1/2. Without noise an outcome in ``w`` is known, its mean is
    its value, feasibility is certain either way, and of Gaussian processes this is the tower
    property: the expected improvement over whatever the pending points turn out to give. With
    noise the incumbent is a plug-in, as in `LogCalibratedExpectedImprovement`.

    Args:
        model: A ``ModelList`` of models with one output each, calibrated or plain Gaussian ones.
        best_f: Best feasible value so far, in units of the objective: a scalar, or of shape ``b``.
        objective_index: Which outcome is the objective.
        constraints: ``{i: (lower, upper)}``, limits on outcome ``i`` in its units; None or
            infinity for no limit.
        maximize: Whether the objective is maximised.
        X_pending: Points under evaluation, ``n x d``, whose outcomes are averaged over.
        num_fantasies: Number of fantasies of the outcomes at pending points.

    Raises:
        InputDataError: If there are no constraints, limits are crossed or NaN, an index names no
            outcome or one that another names, the objective is constrained, or ``best_f`` is NaN
            or no number.
        UnsupportedError: If a model has several outputs or a posterior that is not Gaussian or, by
            its input transform, of several points for each (when evaluated).
    """

    best_f: Tensor
    _fantasy_best: Tensor | None

    def __init__(
        self,
        model: Model,
        best_f: float | Tensor,
        objective_index: int,
        constraints: Mapping[int, Limits],
        maximize: bool = True,
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        self.maximize = maximize
        super().__init__(model, constraints, None, num_fantasies)
        num = model.num_outputs
        (objective_index,) = check_columns("objective_index", [objective_index])
        if not -num <= objective_index < num:
            raise InputDataError(
                f"`objective_index` {objective_index} names none of {num} outcomes."
            )
        self.objective_index = objective_index % num
        if self.objective_index in self.constraints:
            raise InputDataError(
                f"`constraints` holds the objective, outcome {self.objective_index}: an "
                "acquisition function with `best_f` improves it already."
            )
        self.register_buffer("best_f", check_numbers("best_f", best_f))
        self.set_X_pending(X_pending)

    def set_X_pending(self, X_pending: Tensor | None = None) -> None:
        """Account for points under evaluation; each fantasy has an incumbent of its own.

        Args:
            X_pending: ``n x d``, or None to clear them.

        Raises:
            BotorchTensorDimensionError: If it does not have the shape ``n x d``.
            InputDataError: If it holds NaN or infinite values.
            UnsupportedError: If a model has batch dimensions.
        """
        super().set_X_pending(X_pending)
        self._fantasy_best = None
        if self._fantasies is not None:
            self._fantasy_best = self._best_of_pending(self._fantasies)

    @torch.no_grad()
    def _best_of_pending(self, fantasies: Mapping[int, Any]) -> Tensor:
        """For each fantasy the best pending point that is feasible; ``-inf`` if there is none."""
        posteriors = _posteriors(fantasies, self.X_pending)
        feasible = self._log_feasibility(posteriors) > math.log(0.5)
        means = self._objective(posteriors).mean.masked_fill(~feasible, -torch.inf)
        return means.squeeze(-1).amax(dim=-1)

    @property
    def _outcomes(self) -> list[int]:
        return [self.objective_index, *self.constraints]

    def _objective(self, posteriors: Mapping[int, CalibratedPosterior]) -> CalibratedPosterior:
        """Posterior of what is to be maximised."""
        objective = posteriors[self.objective_index]
        return objective if self.maximize else objective.affine(-1.0)

    def _log_value(self, posteriors: Mapping[int, CalibratedPosterior]) -> Tensor:
        best = self.best_f if self.maximize else -self.best_f
        objective = self._objective(posteriors)
        best = incumbent(best, self._fantasy_best, objective)
        log_ei = objective.log_expected_improvement(best)
        return log_ei + self._log_feasibility(posteriors)


def _posteriors(models: Mapping[int, Any], X: Tensor | None) -> dict[int, CalibratedPosterior]:
    """Posteriors of outcomes at ``X``, by outcome."""
    return {i: as_calibrated(model, model.posterior(X)) for i, model in models.items()}


def members_of(model: Model) -> list[Any]:
    """The models of a model's outcomes, which have one each."""
    members: list[Any] = list(model.models) if isinstance(model, ModelList) else [model]
    for member in members:
        if member.num_outputs != 1:
            raise UnsupportedError(
                f"`model` needs one model per outcome in a ModelList, and {type(member).__name__} "
                f"has {member.num_outputs} outputs."
            )
    return members


def checked_constraints(constraints: Mapping[int, Limits], num_outputs: int) -> dict[int, Limits]:
    """Limits by outcome, counted from the front; None for infinite ones, and no entry for two."""
    pairs = constraints.values() if isinstance(constraints, Mapping) else [None]
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise InputDataError(
            "`constraints` must map outcomes to pairs `(lower, upper)`, None for no limit, got "
            f"{constraints!r}."
        )
    checked: dict[int, Limits] = {}
    for key, (lower, upper) in constraints.items():
        (index,) = check_columns("constraints", [key])
        if not -num_outputs <= index < num_outputs:
            raise InputDataError(f"`constraints` names outcome {index} of {num_outputs}.")
        try:
            low = -torch.inf if lower is None else float(lower)
            high = torch.inf if upper is None else float(upper)
        except (TypeError, ValueError, RuntimeError):  # the last of tensors of several numbers
            raise InputDataError(
                f"`constraints` of outcome {index}: limits must be numbers or None, got "
                f"{lower!r} and {upper!r}."
            ) from None
        if not low < high:
            raise InputDataError(
                f"`constraints` of outcome {index}: the lower limit {lower} must be less than the "
                f"upper one {upper}."
            )
        if index % num_outputs in checked:
            raise InputDataError(f"`constraints` names outcome {index % num_outputs} twice.")
        if low > -torch.inf or high < torch.inf:
            checked[index % num_outputs] = (
                low if low > -torch.inf else None,
                high if high < torch.inf else None,
            )
    if not checked:
        raise InputDataError(
            "`constraints` holds no limit: use an acquisition function without them."
        )
    return checked


def limits_of(A: Tensor, b: Tensor) -> dict[int, Limits]:
    """Constraints ``A y <= b`` on one outcome each as limits by outcome.

    Several constraints on one outcome meet in the narrowest limits. (BoTorch keeps the last.)

    Args:
        A: Weights, ``k x m``, of ``m`` outcomes in ``k`` constraints.
        b: Right-hand sides, ``k x 1``.

    Raises:
        UnsupportedError: If a constraint weighs several outcomes, or none.
    """
    limits: dict[int, Limits] = {}
    for weights, bound in zip(A.tolist(), b.reshape(-1).tolist(), strict=True):
        named = [i for i, weight in enumerate(weights) if weight != 0.0]
        if len(named) != 1:
            raise UnsupportedError(
                "`constraints_tuple` must bind one outcome at a time, as a closed form needs "
                f"limits, got the weights {weights}. Monte Carlo acquisition functions, such as "
                "qLogNoisyExpectedImprovement, take constraints on sums of outcomes."
            )
        (i,) = named
        limit, (lower, upper) = bound / weights[i], limits.get(i, (None, None))
        if weights[i] > 0:
            upper = limit if upper is None else min(limit, upper)
        else:
            lower = limit if lower is None else max(limit, lower)
        limits[i] = (lower, upper)
    return limits
