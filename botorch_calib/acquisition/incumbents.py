"""Incumbents: the best observation, and the best one at which constraints were observed to hold."""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Mapping, Sequence

import torch
from botorch.acquisition.objective import PosteriorTransform, ScalarizedPosteriorTransform
from botorch.acquisition.utils import get_infeasible_cost
from botorch.exceptions.warnings import BotorchWarning
from botorch.models.model import Model
from botorch.utils.datasets import SupervisedDataset
from botorch.utils.sampling import draw_sobol_samples
from torch import Tensor

from botorch_calib.acquisition.constrained import Limits
from botorch_calib.exceptions import level_of_caller
from botorch_calib.models.outcome_transforms import raw_train_targets
from botorch_calib.models.process import observed_process, raw_train_inputs

TrainingData = SupervisedDataset | dict[Hashable, SupervisedDataset]
# Points ``n x d`` at which one outcome was observed, and the values ``n``
Observations = tuple[Tensor | None, Tensor]


def best_observation(
    model: Model,
    training_data: TrainingData,
    posterior_transform: PosteriorTransform | None,
    maximize: bool,
) -> Tensor:
    """The best observed value of a model's only outcome, in units after the transform."""
    ((_, values),) = _observations([model], training_data)
    if posterior_transform is not None:
        values = posterior_transform.evaluate(values.unsqueeze(-1))
    return values.amax(dim=-1) if maximize else values.amin(dim=-1)


def best_feasible_observation(
    members: Sequence[Model],
    training_data: TrainingData,
    objective_index: int,
    constraints: Mapping[int, Limits],
    maximize: bool,
) -> Tensor:
    """The best observed value of the objective where all constraints were observed to hold.

    If outcomes were observed at different points, a point counts if each constraint was observed
    there, and held each time. If no observation is feasible, any feasible point is an improvement:
    as in BoTorch the value is then a bound ``M`` that the objective hardly ever passes, the
    smallest ``mean - 6 std`` (greatest ``mean + 6 std`` when minimising) over the observed points
    and 32 others around them, or 0 if that is worse. Two points' ``log E(f - M)+`` hardly differ
    then, and the probability of feasibility decides. ``members`` are models of one outcome each.
    """
    observed = _observations(members, training_data)
    X, values = observed[objective_index]
    feasible = torch.ones_like(values, dtype=torch.bool)
    for i, limits in constraints.items():
        feasible = feasible & _held(limits, observed[i], X)
    if feasible.any():
        values = values[feasible]
        return values.amax() if maximize else values.amin()
    warnings.warn(
        "No observation is feasible: LogCalibratedProbabilityOfFeasibility is to be preferred "
        "until one is.",
        BotorchWarning,
        stacklevel=level_of_caller(),
    )
    if X is None:
        raise _unknown_data()
    return _hardly_ever_passed(members[objective_index], X, maximize)


def _observations(members: Sequence[Model], training_data: TrainingData) -> list[Observations]:
    """Observations of each model's outcome."""
    datasets = list(training_data.values()) if isinstance(training_data, dict) else [training_data]
    observed: list[Observations] = [
        (dataset.X, values) for dataset in datasets for values in dataset.Y.unbind(-1)
    ]
    if len(observed) == len(members):
        return observed
    # There are data of other outcomes, and nothing says which. So take the models' own.
    bases = [observed_process(member) for member in members]
    if not all(base.num_outputs == 1 and hasattr(base, "train_targets") for base in bases):
        raise _unknown_data()
    return [(raw_train_inputs(base), raw_train_targets(base).squeeze(-1)) for base in bases]


def _held(limits: Limits, observed: Observations, X: Tensor | None) -> Tensor:
    """For each row of ``X``, whether limits were observed to hold there."""
    (lower, upper), (places, values) = limits, observed
    low, high = (-math.inf if lower is None else lower), (math.inf if upper is None else upper)
    holds = (low <= values) & (values <= high)
    if X is None or places is None:
        raise _unknown_data()
    if torch.equal(X, places):
        return holds
    same = (X.unsqueeze(-2) == places.unsqueeze(-3)).all(dim=-1)
    return same.any(dim=-1) & ~(same & ~holds).any(dim=-1)


@torch.no_grad()
def _hardly_ever_passed(model: Model, X: Tensor, maximize: bool) -> Tensor:
    """A value that the outcome of ``model`` is hardly ever worse than, around the points ``X``."""
    low, high = X.amin(dim=-2), X.amax(dim=-2)
    margin = 0.1 * (high - low)
    around = draw_sobol_samples(torch.stack([low - margin, high + margin]), n=32, q=1, seed=0)
    sign = 1.0 if maximize else -1.0
    cost = get_infeasible_cost(
        torch.cat([X, around.squeeze(-2)]),
        model,
        posterior_transform=ScalarizedPosteriorTransform(X.new_tensor([sign])),
    )
    return -sign * cost.squeeze(-1)


def _unknown_data() -> NotImplementedError:
    return NotImplementedError(
        "Give `best_f`: its default needs the data of the model's outcomes, one for each output."
    )
