"""Closed-form acquisition functions under constraints on calibrated outcomes (``q = 1``).

Outcomes are independent, so log expected improvement and log probabilities of feasibility add up.
Each term is exact under the predictive distribution. BoTorch's terms use the mean and the variance
only: far from feasibility they are wrong by orders of magnitude unless distributions are normal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from botorch.exceptions import InputDataError
from botorch.models.model import Model
from botorch.utils import t_batch_mode_transform
from torch import Tensor

from botorch_calib._validation import check_columns, check_model, check_number, check_numbers
from botorch_calib.acquisition.base import CalibratedAcquisitionFunction
from botorch_calib.acquisition.improvement import ImprovementFunction

# Lower and upper limit of an outcome; None for no limit.
Limits = tuple[float | None, float | None]


class _Constrained(CalibratedAcquisitionFunction):
    """Base class of functions that use the probability that all constraints hold."""

    _log = True
    constraints: dict[int, Limits]

    def _log_feasibility(self, X: Tensor) -> Tensor:
        """Log probability that all constraints hold at ``X``, in the shape of `_marginals`."""
        parts = [
            self._marginals(X, outcome).log_probability_between(lower, upper)
            for outcome, (lower, upper) in self.constraints.items()
        ]
        return torch.stack(parts).sum(dim=0)


class LogCalibratedProbabilityOfFeasibility(_Constrained):
    r"""Log probability that all constraints hold, ``sum_i log P(lower_i <= y_i <= upper_i)``.

    Unlike BoTorch's ``LogProbabilityOfFeasibility``, this function is exact for calibrated outcomes
    ``y_i``. An outcome is noise-free, or an observation if its model has ``denoise=False``.

    Args:
        model: A `CalibratedModelList` of calibrated or Gaussian models, or a single such model.
        constraints: Maps the index ``i`` of an outcome to its limits ``(lower, upper)``, in units
            of the outcome. None or infinity means no limit.
        X_pending, num_fantasies: As in `LogCalibratedExpectedImprovement`.

    Raises:
        InputDataError: If ``constraints`` are empty or malformed, or name an outcome twice.
        UnsupportedError: If a model has several outputs. On evaluation, if a posterior is neither
            calibrated nor Gaussian, or has several values per point.

    Example:
        >>> models = CalibratedModelList(model, SingleTaskGP(X, X.sum(dim=-1, keepdim=True)))
        >>> acqf = LogCalibratedProbabilityOfFeasibility(models, constraints={1: (None, 1.2)})
    """

    def __init__(
        self,
        model: Model,
        constraints: Mapping[int, Limits],
        X_pending: Tensor | None = None,
        num_fantasies: int = 16,
    ) -> None:
        limits = checked_constraints(constraints, check_model(model).num_outputs)
        super().__init__(model, num_fantasies=num_fantasies, outcomes=[*limits])
        self.constraints = limits
        self.set_X_pending(X_pending)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        return self._reduce(self._log_feasibility(X))


class LogCalibratedConstrainedExpectedImprovement(_Constrained, ImprovementFunction):
    r"""Log expected improvement plus log probabilities of feasibility.

    The value is ``log E(f~ - best_f)+ + sum_i log P(lower_i <= y_i <= upper_i)``, with the
    calibrated objective ``f~`` and the constrained outcomes ``y_i``. For independent outcomes this
    is the logarithm of the expected feasible improvement (Gardner et al., Bayesian optimization
    with inequality constraints, 2014). The arguments are the same as in BoTorch's
    ``LogConstrainedExpectedImprovement``, and values are exact for calibrated outcomes.

    With pending points the expectation includes fantasies ``w`` of their outcomes:
    ``log E_w[E((f~ - best_w)+ | w) prod_i P(lower_i <= y_i <= upper_i | w)]``. The incumbent
    ``best_w`` is the best of ``best_f`` and the posterior means, given ``w``, of the objective
    at those pending points that are feasible with probability above 1/2, given ``w``.

    Args:
        model: A `CalibratedModelList` of calibrated or Gaussian models.
        best_f: Best feasible value so far, in units of the objective: a scalar, or a tensor that
            can be broadcast to the batch shape of the points.
        objective_index: The index of the objective among the outcomes.
        constraints: As in `LogCalibratedProbabilityOfFeasibility`, without limits on the objective.
        maximize: If False, the improvement is ``(best_f - f~)+``.
        X_pending, num_fantasies: As in `LogCalibratedExpectedImprovement`.

    Raises:
        InputDataError: If the objective is constrained, or an index or ``constraints`` is invalid.
        UnsupportedError: As in `LogCalibratedProbabilityOfFeasibility`.

    Example:
        >>> models = CalibratedModelList(model, SingleTaskGP(X, X.sum(dim=-1, keepdim=True)))
        >>> acqf = LogCalibratedConstrainedExpectedImprovement(
        ...     models, best_f=0.5, objective_index=0, constraints={1: (None, 1.2)}
        ... )
    """

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
        num = check_model(model).num_outputs
        limits = checked_constraints(constraints, num)
        objective_index = _checked_index("objective_index", objective_index, num)
        if objective_index in limits:
            raise InputDataError(
                f"`constraints` holds the objective, outcome {objective_index}: `best_f` bounds "
                "it already."
            )
        outcomes = [objective_index, *limits]
        super().__init__(model, maximize=maximize, num_fantasies=num_fantasies, outcomes=outcomes)
        self.objective_index = objective_index
        self.constraints = limits
        self.register_buffer("best_f", check_numbers("best_f", best_f))
        self.set_X_pending(X_pending)

    @t_batch_mode_transform(expected_q=1)  # type: ignore[arg-type]
    def forward(self, X: Tensor) -> Tensor:
        f = self._marginals(X)
        log_ei = f.log_expected_improvement(self._incumbent(f))
        return self._reduce(log_ei + self._log_feasibility(X))

    def _means_at(self, X: Tensor) -> Tensor:
        """Posterior means at pending points ``X``, ``n x 1 x d``, in the shape of `_marginals`.

        The mean is ``-inf`` where the constraints hold with a probability of at most 1/2.
        """
        feasible = self._log_feasibility(X) > math.log(0.5)
        return super()._means_at(X).masked_fill(~feasible, -torch.inf)


def _checked_index(name: str, outcome: int, num_outputs: int) -> int:
    """Check the index ``outcome``, and return it as a nonnegative number; errors name ``name``."""
    (index,) = check_columns(name, [outcome])
    if not -num_outputs <= index < num_outputs:
        raise InputDataError(f"`{name}` names outcome {index} of {num_outputs}.")
    return index % num_outputs


def checked_constraints(constraints: Mapping[int, Limits], num_outputs: int) -> dict[int, Limits]:
    """Check constraints, and return a dictionary from nonnegative outcome indices to limits.

    Infinite limits become None, and outcomes without limits are dropped. ``InputDataError`` is
    raised if ``constraints`` is malformed, names an outcome twice, or holds no limit.
    """
    pairs = constraints.values() if isinstance(constraints, Mapping) else [None]
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise InputDataError(
            "`constraints` must map outcomes to pairs `(lower, upper)`, None for no limit, got "
            f"{constraints!r}."
        )
    checked: dict[int, Limits] = {}
    for key, (lower, upper) in constraints.items():
        index = _checked_index("constraints", key, num_outputs)
        if index in checked:
            raise InputDataError(f"`constraints` names outcome {index} twice.")
        name = f"constraints[{key}]"
        low = check_number(name, -math.inf if lower is None else lower, allow_inf=True)
        high = check_number(name, math.inf if upper is None else upper, allow_inf=True)
        if not low < high:
            raise InputDataError(
                f"`{name}` must have the lower limit less than the upper, got {lower} and {upper}."
            )
        checked[index] = (low if low > -math.inf else None, high if high < math.inf else None)
    checked = {i: limits for i, limits in checked.items() if limits != (None, None)}
    if not checked:
        raise InputDataError("`constraints` holds no limit: use a function without constraints.")
    return checked
