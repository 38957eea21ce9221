"""Chance constraints in BayBE, by a recommender whose decisions are stored with the campaign.

It needs BayBE (``pip install botorch_calib[baybe]``). It is for discrete search spaces, of which it
certifies each candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

try:
    from baybe.recommenders import BotorchRecommender
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.baybe needs BayBE: pip install botorch_calib[baybe]"
    ) from error
import pandas as pd
import torch
from attrs import define, field
from baybe.exceptions import NotEnoughPointsLeftError
from baybe.objectives.base import Objective
from baybe.searchspace import SearchSpace, SearchSpaceType
from baybe.transformations import IdentityTransformation
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from torch import Tensor

from botorch_calib.decisions import ChanceConstraint
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place, best_certified
from botorch_calib.decisions.rows import DecisionAccount
from botorch_calib.integrations import _stored as stored


def _as_lists(limits: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in limits.values()):
        raise InputDataError(f"`limits` must hold a pair `(lower, upper)` for each, got {limits}.")
    return {name: [*pair] for name, pair in limits.items()}


# With slots there are two classes of this name, and loading finds either.
@define(slots=False, kw_only=True)
class ChanceConstrainedRecommender(BotorchRecommender):
    """Recommendations that keep targets within limits with a stated probability, kept true.

    The campaign has a ``ParetoObjective`` of the target to be optimised and of those that have
    limits. Each recommendation is the best one by the upper confidence bound of the former among
    the candidates that a `ChanceConstraint` certifies, on BayBE's surrogate models. Pending
    experiments have their expected values.

    At most ``(1 - level) T + budget + level`` of the first ``T`` certified recommendations violate
    a limit, see `ChanceConstraint`. BayBE writes ``decisions`` to its files. A certified candidate
    counts as a violation until it is measured. Use the recommender in the second phase of a
    campaign, after some 8 measurements for each parameter.

    Args:
        limits: ``(lower, upper)`` of each limited target, in its units, None for no limit.
        level: Probability, in (0, 1), with which a recommendation shall keep all limits.
        budget: As in `ChanceConstraint`.
        beta: Squared multiplier of the standard deviation in the upper confidence bound.
        decisions: Those taken so far.

    Raises:
        InputDataError: If ``limits`` are no pairs; when it recommends, if all but one of the
            targets do not have limits, or an argument is malformed.
        UnsupportedError: When it recommends, if the search space is not discrete, or the target
            that is optimised is transformed.

    Warns:
        CalibrationWarning: If decisions are of another level or other limited targets.
        NotCertifiedWarning: If a recommendation is not certified.

    Example:
        >>> recommender = ChanceConstrainedRecommender(limits={"pressure": (None, 2.0)}, level=0.9)
    """

    limits: dict[str, list[float | None]] = field(converter=_as_lists)
    level: float = field(default=0.9)
    budget: float = field(default=SIZE)
    beta: float = field(default=4.0)
    decisions: list[dict[str, Any]] = field(factory=list)

    def recommend(
        self,
        batch_size: int,
        searchspace: SearchSpace,
        objective: Objective | None = None,
        measurements: pd.DataFrame | None = None,
        pending_experiments: pd.DataFrame | None = None,
    ) -> pd.DataFrame:
        """Recommend some candidates; BayBE's ``NotEnoughPointsLeftError`` if there are fewer."""
        if searchspace.type is not SearchSpaceType.DISCRETE:
            raise UnsupportedError("Each candidate is certified: the space must be discrete.")
        if objective is None or measurements is None or measurements.empty:
            raise InputDataError(
                "An objective and measurements are needed: recommend at random before, as the "
                "initial recommender of a TwoPhaseMetaRecommender does."
            )
        models = self._models(searchspace, objective, measurements)
        target: Any
        (target,) = (each for each in objective.targets if each.name not in self.limits)
        if not isinstance(target.transformation, IdentityTransformation):
            raise UnsupportedError(
                f"The target {target.name!r} is optimised as it is measured: state it without a "
                f"{type(target.transformation).__name__}."
            )
        constraint = stored.constraint_of(self._account(searchspace, measurements), models)
        candidates, _ = searchspace.discrete.get_candidates()
        if len(candidates) < batch_size:  # BayBE's own error, of which a campaign says more
            raise NotEnoughPointsLeftError(
                f"Fewer than {batch_size} candidates are left: there are {len(candidates)}."
            )
        choices = _points(searchspace, candidates)
        pending = choices[:0]
        if pending_experiments is not None and len(pending_experiments):
            pending = _points(searchspace, pending_experiments)
        left = torch.ones(len(choices), dtype=torch.bool)

        def best(acqf: AcquisitionFunction, constraint: ChanceConstraint) -> tuple[Tensor, bool]:
            return best_certified(acqf, LeastMargin(constraint), Place(None, choices[left]))

        decided_in_turn = stored.decide_in_turn(
            best,
            constraint,
            models[target.name],
            pending,
            self.beta,
            not target.minimize,
            searchspace.comp_rep_columns,
            len(measurements),
        )
        chosen: list[int] = []
        decided = []
        for point, row in islice(decided_in_turn, batch_size):
            chosen.append(int(((choices == point).all(dim=-1) & left).double().argmax()))
            left[chosen[-1]] = False
            decided.append(row)
        self.decisions += decided  # none of a call that fails, whose candidates nobody gets
        return candidates.iloc[chosen]

    def chance_constraint(
        self, searchspace: SearchSpace, objective: Objective, measurements: pd.DataFrame
    ) -> ChanceConstraint:
        """The constraint of a campaign as it stands, on models of all measurements."""
        models = self._models(searchspace, objective, measurements)
        return stored.constraint_of(self._account(searchspace, measurements), models)

    def _models(
        self, searchspace: SearchSpace, objective: Objective, measurements: pd.DataFrame
    ) -> dict[str, Any]:
        names = [target.name for target in objective.targets]
        if len(set(names) - set(self.limits)) != 1 or not set(self.limits) < set(names):
            raise InputDataError(
                f"All but one of the targets {names} must have limits, got `limits` of "
                f"{[*self.limits]}: make a ParetoObjective of them."
            )
        model: Any = self.get_surrogate(searchspace, objective, measurements).to_botorch()
        return dict(zip(names, model.models, strict=True))

    def _account(self, searchspace: SearchSpace, measurements: pd.DataFrame) -> DecisionAccount:
        inputs = searchspace.transform(measurements, allow_extra=True)
        trials = stored.trials_in_table(self.decisions, inputs, measurements[[*self.limits]])
        return stored.account_of(self.limits, self.level, self.budget, trials)


def _points(searchspace: SearchSpace, experiments: pd.DataFrame) -> Tensor:
    """Points ``n x d`` of experiments, as BayBE encodes them."""
    return torch.tensor(searchspace.transform(experiments, allow_extra=True).to_numpy())
