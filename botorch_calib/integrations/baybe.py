"""Chance constraints in BayBE: a recommender that stores its decisions with the campaign.

It needs BayBE (``pip install botorch_calib[baybe]``) and a discrete search space, since it
certifies each candidate.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

try:
    from baybe import Campaign
    from baybe.exceptions import NotEnoughPointsLeftError
    from baybe.objectives.base import Objective
    from baybe.recommenders import BotorchRecommender
    from baybe.searchspace import SearchSpace, SearchSpaceType
    from baybe.transformations import IdentityTransformation
    from baybe.utils.numerical import closest_element
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.baybe needs BayBE 0.15 or later: pip install "
        "botorch_calib[baybe]"
    ) from error
import numpy as np
import pandas as pd
import torch
from attrs import define, field
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib.decisions import ChanceConstraint, Recommendation, recommend
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place, best_certified
from botorch_calib.exceptions import CalibrationWarning, level_of_caller
from botorch_calib.integrations import _stored as stored

_Stored = dict[str, Any]
_BATCH = "BatchNr"  # the column in which a campaign numbers additions
# States of decisions, None at first: measured, also if the measurement was removed since; replaced
# by a later call, then measured; replaced and not measured; taken back.
_RUN, _LATE, _REPLACED, _WITHDRAWN = "run", "late", "replaced", "withdrawn"
_NOT_RUN, _OVERTAKEN = (_REPLACED, _WITHDRAWN), (_REPLACED, _LATE)
# How many of the last measurements identify a campaign, and the share that must still be there.
_LAST, _MOST = 20, 0.6


def _as_lists(limits: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in limits.values()):
        raise InputDataError(f"`limits` must hold a pair `(lower, upper)` for each, got {limits}.")
    return {name: [*pair] for name, pair in limits.items()}


# With slots there are two classes of this name, and loading finds either. Without its own state, a
# copy would lose the fields that the parent lacks.
@define(slots=False, kw_only=True, getstate_setstate=True)
class ChanceConstrainedRecommender(BotorchRecommender):
    """Recommendations that keep targets within limits with a stated probability, kept true.

    The campaign has a ``ParetoObjective`` of the target to be optimised and of those that have
    limits. Each recommendation is the best one by the upper confidence bound of the former among
    the candidates that a `ChanceConstraint` certifies, on BayBE's surrogate models. Pending
    experiments have their expected values.

    At most ``(1 - level) T + budget + level`` of the first ``T`` certified recommendations violate
    a limit, see `ChanceConstraint`. BayBE writes ``decisions`` to its files. A measurement belongs
    to the candidate that BayBE takes it for, the nearest one. Use the recommender in the second
    phase of a campaign, after some 8 measurements for each parameter.

    **What counts.** A certified candidate counts as a violation until it is measured, unless a
    later call replaces it: a call with ``pending_experiments`` replaces what these do not name, and
    any call what was recommended on the same measurements. If a replaced candidate is measured
    after all, it counts, and the other replaced ones as well from then on. So the bound holds if
    running experiments are named in ``pending_experiments``; else it may be exceeded by those that
    were running when the first replaced one was measured. Enter a run that failed as a measurement
    without values: the books cannot tell it from a recommendation that was only looked at.

    Args:
        limits: ``(lower, upper)`` of each limited target, in its units, None for no limit.
        level: Probability, in (0, 1), with which a recommendation shall keep all limits.
        budget: As in `ChanceConstraint`.
        beta: Squared multiplier of the standard deviation in the upper confidence bound.
        decisions: Those taken so far.
        last_lines: Measurements by which the campaign of the decisions is known.

    Raises:
        InputDataError: If ``limits`` are no pairs; when it recommends, if all but one of the
            targets do not have limits, decisions are of another campaign, or an argument is
            malformed.
        UnsupportedError: When it recommends, if the search space is not discrete, or the target
            that is optimised is transformed.

    Warns:
        CalibrationWarning: If decisions are of another level or other limited targets, or replaced
            candidates were measured.
        NotCertifiedWarning: If a recommendation is not certified.

    Example:
        >>> recommender = ChanceConstrainedRecommender(limits={"pressure": (None, 2.0)}, level=0.9)
    """

    limits: dict[str, list[float | None]] = field(converter=_as_lists)
    level: float = field(default=0.9)
    budget: float = field(default=SIZE)
    beta: float = field(default=4.0)
    decisions: list[dict[str, Any]] = field(factory=list)
    last_lines: list[dict[str, Any]] = field(factory=list)

    def recommend(
        self,
        batch_size: int,
        searchspace: SearchSpace,
        objective: Objective | None = None,
        measurements: pd.DataFrame | None = None,
        pending_experiments: pd.DataFrame | None = None,
    ) -> pd.DataFrame:
        """Recommend some candidates; BayBE's ``NotEnoughPointsLeftError`` if there are fewer."""
        models, target, measurements = self._models(searchspace, objective, measurements)
        decisions = self._asked_again(searchspace, measurements, pending_experiments)
        constraint = self._constraint(searchspace, measurements, decisions, models)
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
        )
        chosen: list[int] = []
        decided = []
        for point, row in islice(decided_in_turn, batch_size):
            chosen.append(int(((choices == point).all(dim=-1) & left).double().argmax()))
            left[chosen[-1]] = False
            decided.append(row)
        recommended = candidates.iloc[chosen]
        values = measurements[[*self.limits]].astype(object)
        values = values.where(values.notna(), None)
        for row, candidate in zip(decided, recommended.to_dict("records"), strict=True):
            batch = int(np.max(measurements.get(_BATCH, 0)))
            row.update(candidate=candidate, state=None, batch=batch, after=len(measurements))
            (own,) = _same(searchspace, [row], measurements)
            row["known"] = values[own].to_numpy().tolist()
        # Stored last: nobody gets the candidates of a call that fails. A candidate that is
        # recommended again on the same measurements is the same decision.
        again = zip(decisions, _same(searchspace, decisions, recommended), strict=True)
        self.decisions = [
            each
            for each, own in again
            if each["state"] not in _NOT_RUN or each["after"] != len(measurements) or not own.any()
        ] + decided
        last = measurements[[*searchspace.parameter_names]].join(values).tail(_LAST)
        for each in searchspace.discrete.parameters:
            if each.is_numerical:
                nearest = [closest_element(each.values, value) for value in last[each.name]]
                last[each.name] = nearest
        self.last_lines = last.to_dict("records")
        return recommended

    def chance_constraint(
        self, searchspace: SearchSpace, objective: Objective, measurements: pd.DataFrame
    ) -> ChanceConstraint:
        """The constraint of a campaign as it stands, on models of all measurements."""
        models, _, measurements = self._models(searchspace, objective, measurements)
        return self._constraint(searchspace, measurements, self.decisions, models)

    def recommendation(
        self, campaign: Campaign, confidence: float = 0.95
    ) -> tuple[pd.DataFrame, Recommendation]:
        """The candidate to stop at, a table of one row, and what `recommend` states about it.

        It is none that the campaign excludes.

        Args:
            campaign: A campaign with measurements.
            confidence: Confidence of each statement, in (0, 1).

        Warns:
            NotCertifiedWarning: If no candidate is safe with this confidence.
        """
        space, objective = campaign.searchspace, campaign.objective
        models, target, measurements = self._models(space, objective, campaign.measurements)
        constraint = self._constraint(space, measurements, self.decisions, models)
        is_excluded = campaign._searchspace_metadata["excluded"].astype(bool)
        candidates = space.discrete.exp_rep[~is_excluded]
        choices = _points(space, candidates)
        stated = recommend(
            models[target.name], constraint, None, choices, confidence, maximize=not target.minimize
        )
        return candidates[(choices == stated.candidate).all(dim=-1).numpy()][:1], stated

    def outstanding(self, campaign: Campaign) -> pd.DataFrame:
        """Recommended candidates without a measurement, if certified, and if replaced."""
        names, flags = [*campaign.searchspace.parameter_names], ["certified", "replaced"]
        states = ({**each, "replaced": each["state"] == _REPLACED} for each in self._open(campaign))
        rows = [{**each["candidate"], **{flag: each[flag] for flag in flags}} for each in states]
        return pd.DataFrame(rows, columns=names + flags)

    def withdraw(self, campaign: Campaign, experiments: pd.DataFrame) -> None:
        """Take back recommendations that were not run, the rows of a table such as `outstanding`.

        They count all the same if they are measured later.

        Raises:
            InputDataError: If one was not recommended, or has a measurement.
        """
        decisions, withdrawn = self._open(campaign), set()
        for number, own in enumerate(_same(campaign.searchspace, decisions, experiments).T):
            free = [j for j in np.flatnonzero(own).tolist() if j not in withdrawn]
            if not free:
                raise InputDataError(
                    f"Row {number} of `experiments` is no recommendation without a measurement: "
                    "see `outstanding`."
                )
            withdrawn.add(max(free, key=lambda j: (decisions[j]["state"] != _REPLACED, j)))
        for j in withdrawn:
            decisions[j]["state"] = _WITHDRAWN

    def _open(self, campaign: Campaign) -> list[_Stored]:
        """Decisions that have no measurement and were not withdrawn."""
        lines = _lines(campaign.searchspace, self.decisions, campaign.measurements)
        pairs = zip(self.decisions, lines, strict=True)
        return [each for each, line in pairs if line is None and each["state"] != _WITHDRAWN]

    def _models(
        self,
        searchspace: SearchSpace,
        objective: Objective | None,
        measurements: pd.DataFrame | None,
    ) -> tuple[dict[str, Any], Any, pd.DataFrame]:
        """Models by the names of the targets, the target that is optimised, and measurements."""
        if searchspace.type is not SearchSpaceType.DISCRETE:
            raise UnsupportedError("Each candidate is certified: the space must be discrete.")
        if objective is None or measurements is None or measurements.empty:
            raise InputDataError(
                "An objective and measurements are needed: recommend at random before, as the "
                "initial recommender of a TwoPhaseMetaRecommender does."
            )
        names = [target.name for target in objective.targets]
        if len(set(names) - set(self.limits)) != 1 or not set(self.limits) < set(names):
            raise InputDataError(
                f"All but one of the targets {names} must have limits, got `limits` of "
                f"{[*self.limits]}: make a ParetoObjective of them."
            )
        target: Any
        (target,) = (each for each in objective.targets if each.name not in self.limits)
        if not isinstance(target.transformation, IdentityTransformation):
            raise UnsupportedError(
                f"The target {target.name!r} is optimised as it is measured: state it without a "
                f"{type(target.transformation).__name__}."
            )
        self._check_campaign(searchspace, measurements)
        model: Any = self.get_surrogate(searchspace, objective, measurements).to_botorch()
        models = dict(zip(names, model.models, strict=True))
        return models, target, measurements.reset_index(drop=True)

    def _constraint(
        self,
        searchspace: SearchSpace,
        measurements: pd.DataFrame,
        decisions: Sequence[_Stored],
        models: Mapping[str, Any],
    ) -> ChanceConstraint:
        """The constraint of those decisions that count."""
        lines, columns = _lines(searchspace, decisions, measurements), searchspace.comp_rep_columns
        outcomes, trials = measurements[[*self.limits]].to_dict("records"), []
        states = _states(decisions, lines)
        left_out = (_WITHDRAWN,) if _LATE in states else _NOT_RUN
        for each, line, state in zip(decisions, lines, states, strict=True):
            # The inputs may be others by now.
            point = [each["inputs"][n] for n in columns] if {*each["inputs"]} == {*columns} else []
            if state not in left_out:
                trials.append(({**each, "point": point}, {} if line is None else outcomes[line]))
        remedy = (
            "add their measurements to the campaign, and `withdraw` recommendations that were "
            "never run; the recommender's `outstanding(campaign)` has them"
        )
        account = stored.account_of(self.limits, self.level, self.budget, trials, remedy)
        return stored.constraint_of(account, models)

    def _asked_again(
        self,
        searchspace: SearchSpace,
        measurements: pd.DataFrame,
        pending_experiments: pd.DataFrame | None,
    ) -> list[_Stored]:
        """The decisions, of which a call replaces some, and the others that are measured by now."""
        states = _states(self.decisions, _lines(searchspace, self.decisions, measurements))
        if _LATE in states and _REPLACED in states:
            warnings.warn(
                "Recommendations that later calls replaced were measured, so each of them counts "
                "until it is: name running experiments in `pending_experiments`, and `withdraw` "
                "what is `outstanding` and was not run.",
                CalibrationWarning,
                stacklevel=level_of_caller(),
            )
        is_told, measured = pending_experiments is not None, len(measurements)
        replaced = [
            j
            for j, each in enumerate(self.decisions)
            if states[j] is None and _LATE not in states and (is_told or each["after"] == measured)
        ]
        for own in _same(searchspace, self.decisions, pending_experiments).T:
            named = [j for j in replaced if own[j]][:1]
            replaced = [j for j in replaced if j not in named]
        for j in replaced:
            states[j] = _REPLACED
        pairs = zip(self.decisions, states, strict=True)
        return [{**each, "state": state} for each, state in pairs]

    def _check_campaign(self, searchspace: SearchSpace, measurements: pd.DataFrame) -> None:
        """Raise unless most of the last measurements that the recommender has seen are here."""
        if not self.last_lines:
            return
        last = pd.DataFrame(self.last_lines)
        then, now = (
            table.reindex(columns=[*self.limits]).to_numpy(dtype=float)
            for table in (last, measurements)
        )
        found = _same(searchspace, [{"candidate": line} for line in self.last_lines], measurements)
        found &= ~(np.abs(then[:, None] - now) > 0.05 * np.ptp(then, axis=0)).any(axis=-1)
        if found.any(axis=1).mean() < _MOST:
            raise InputDataError(
                "`decisions` are of another campaign: most of its last measurements are not here. "
                "Give each campaign a recommender of its own. If these are of the same campaign, "
                "set `last_lines` to []."
            )


def _same(
    searchspace: SearchSpace,
    decisions: Sequence[Mapping[str, Any]],
    experiments: pd.DataFrame | None,
) -> NDArray[np.bool_]:
    """Whether BayBE takes experiments, the columns, for the candidate of each decision.

    It takes them for the nearest one by each parameter; here, if they are not far outside. Any
    value suits a parameter that a decision was made without.
    """
    experiments = pd.DataFrame() if experiments is None else experiments
    same = np.ones((len(decisions), len(experiments)), dtype=bool)
    is_known = np.zeros_like(same)
    for parameter in searchspace.discrete.parameters if same.size else ():
        named = [each["candidate"].get(parameter.name) for each in decisions]
        own = experiments[parameter.name].to_numpy()
        has = np.array([[value is not None] for value in named])
        if parameter.is_numerical:
            grid, own = np.array(parameter.values, dtype=float), own.astype(float)
            reach = np.abs(own[:, None] - grid).min(axis=1).clip(max=np.diff(grid).max() / 2)
            # A grid that was made again may differ in the last digits.
            reach += 1e-9 * np.abs(grid).max()
            is_equal = np.abs(np.array(named, dtype=float)[:, None] - own) <= reach
        else:
            is_equal = np.array(named, dtype=str)[:, None] == own.astype(str)
        same &= is_equal | ~has
        is_known |= has
    return same & is_known


def _lines(
    searchspace: SearchSpace, decisions: Sequence[_Stored], measurements: pd.DataFrame
) -> list[int | None]:
    """The place of each decision's measurement in the table, None as long as there is none.

    A measurement from before a decision can only belong to earlier ones. Its value identifies it.
    If the value is missing, the measurement was corrected, if another one is of an early batch, or
    else removed.
    """
    may_be = _same(searchspace, decisions, measurements)
    batches = np.asarray(measurements.get(_BATCH, 0))
    for decision, own in zip(decisions, may_be, strict=True):
        names, missing = [*decision["limits"]], 0
        at = np.flatnonzero(own)
        values = measurements.iloc[at].reindex(columns=names).to_numpy(dtype=float)
        known = np.array(decision["known"], dtype=float).reshape(-1, 1, len(names))
        for equal in np.isclose(values, known, rtol=1e-6, equal_nan=True).all(axis=-1):
            equal &= own[at]
            missing += not equal.any()
            own[at[equal][:1]] = False
        own[np.flatnonzero(own & (batches <= decision["batch"]))[:missing]] = False
    lines: list[int | None] = [None] * len(decisions)
    # A measurement that may belong to few decisions came early. The last of these gets it, so that
    # the others keep theirs if a measurement is removed.
    for line in may_be.sum(axis=0).argsort(kind="stable").tolist():
        free = [j for j in np.flatnonzero(may_be[:, line]).tolist() if lines[j] is None]
        if free:
            lines[max(free, key=lambda j: (decisions[j]["state"] not in _NOT_RUN, j))] = line
    return lines


def _states(decisions: Sequence[_Stored], lines: Sequence[int | None]) -> list[str | None]:
    """The states of decisions by their measurements."""
    return [
        each["state"] if line is None else _LATE if each["state"] in _OVERTAKEN else _RUN
        for each, line in zip(decisions, lines, strict=True)
    ]


def _points(searchspace: SearchSpace, experiments: pd.DataFrame) -> Tensor:
    """Points ``n x d`` of experiments, as BayBE encodes them."""
    return torch.tensor(searchspace.transform(experiments, allow_extra=True).to_numpy())
