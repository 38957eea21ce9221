"""Chance constraints in BayBE: a recommender that stores its decisions with the campaign.

The module needs BayBE (``pip install botorch_calib[baybe]``). The search space must be discrete,
since the recommender certifies each candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
        "botorch_calib.integrations.baybe needs BayBE 0.15, or a later version with the names that "
        f"it imports ({error}): pip install botorch_calib[baybe]"
    ) from error
import numpy as np
import pandas as pd
import torch
from attrs import define, field
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from numpy.typing import NDArray
from torch import Tensor

from botorch_calib._validation import check_nonnegative
from botorch_calib.decisions import ChanceConstraint, Recommendation, recommend
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import LeastMargin, Place, best_certified
from botorch_calib.exceptions import warn
from botorch_calib.integrations import _stored as stored

_Stored = dict[str, Any]
_BATCH = "BatchNr"  # BayBE's column with the batch number of each measurement
# The states of a decision; the state of a new decision is None.
# _RUN: The candidate was measured, even if the measurement was removed later.
# _LATE: The candidate was measured after a later call had replaced it.
# _REPLACED: A later call replaced the candidate, which was not measured.
# _WITHDRAWN: The user withdrew the candidate.
_RUN, _LATE, _REPLACED, _WITHDRAWN = "run", "late", "replaced", "withdrawn"
_NOT_RUN, _OVERTAKEN = (_REPLACED, _WITHDRAWN), (_REPLACED, _LATE)
# Number of last measurements that identify a campaign, and the least share of them that a call must
# find in its measurements. With a smaller share, the decisions are taken to be of another campaign.
_LAST, _MOST = 20, 0.6


def _as_lists(limits: Mapping[str, Sequence[float | None]]) -> dict[str, list[float | None]]:
    pairs = limits.values() if isinstance(limits, Mapping) else [None]
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in pairs):
        raise InputDataError(f"`limits` must hold a pair `(lower, upper)` for each, got {limits}.")
    return {name: [*pair] for name, pair in limits.items()}


# With slots, attrs would create a second class of this name, and BayBE might load either of them.
# Without ``getstate_setstate``, a copy would lose the fields that the parent class does not have.
@define(slots=False, kw_only=True, getstate_setstate=True)
class ChanceConstrainedRecommender(BotorchRecommender):
    """A recommender of candidates that keep targets within limits with a stated probability.

    The campaign needs a ``ParetoObjective`` of the optimised target and the targets with limits. A
    `ChanceConstraint` on BayBE's surrogate models certifies candidates. Each recommendation has the
    best upper confidence bound of the optimised target among the certified candidates. Pending
    experiments are assumed to yield their expected values.

    At most ``(1 - level) T + budget + level`` of the first ``T`` certified recommendations violate
    a limit, see `ChanceConstraint`. BayBE writes ``decisions`` to its files. A measurement belongs
    to the nearest candidate, as in BayBE. Use the recommender in the second phase of a campaign,
    after about 8 measurements for each parameter.

    **What counts.** A certified candidate counts as a violation until it is measured, unless a
    later call *replaces* it, which means that it is assumed never to be run. A call with
    ``pending_experiments`` replaces all unmeasured candidates except these experiments. Any call
    replaces the unmeasured candidates of earlier calls that had the same measurements. If a
    replaced candidate is measured after all, it counts, and from then on the other replaced
    candidates count too. So the bound holds if running experiments are named in
    ``pending_experiments``. Otherwise the bound may be exceeded, by at most the number of
    experiments that were running when a replaced candidate was first measured. Enter a failed run
    as a measurement without values: a run without a measurement is treated as a recommendation that
    was never run.

    Args:
        limits: A pair ``(lower, upper)`` for each limited target, by name, in the target's units;
            None for no limit.
        level: Probability, in (0, 1), with which a recommendation shall keep all limits.
        budget: See `ChanceConstraint`.
        beta: Squared multiplier of the standard deviation in the upper confidence bound.
        decisions: The decisions so far. Each recommendation updates them.
        last_lines: The last measurements, which identify the campaign that the decisions are for.
            Each recommendation updates them, too.

    Raises:
        InputDataError: If ``limits`` does not hold pairs. When it recommends: if the number of
            targets without limits is not one, the decisions belong to another campaign, or an
            argument is malformed.
        UnsupportedError: When it recommends: if the search space is not discrete, the optimised
            target is transformed, there is an ``acquisition_function``, or candidates of a batch
            must share values (``DiscreteBatchConstraint``).

    Warns:
        CalibrationWarning: If decisions have another level or other limited targets, or replaced
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
        """Recommend ``batch_size`` candidates, as a table with a row for each candidate.

        Raises BayBE's ``NotEnoughPointsLeftError`` if fewer candidates are left.
        """
        models, target, measurements = self._models(searchspace, objective, measurements)
        _check_table("pending_experiments", pending_experiments, searchspace.parameter_names)
        if batch_size > 1 and searchspace.discrete.constraints_batch:
            raise UnsupportedError(
                "Constraints on batches would be ignored: use a batch size of 1, or remove them."
            )
        decisions = self._asked_again(searchspace, measurements, pending_experiments)
        constraint = self._constraint(searchspace, measurements, decisions, models)
        candidates, _ = searchspace.discrete.get_candidates()
        if len(candidates) < batch_size:  # a campaign adds details to this error
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

        chosen: list[int] = []
        decided = []
        for point, row in stored.decide_in_turn(
            batch_size,
            best,
            constraint,
            models[target.name],
            pending,
            check_nonnegative("beta", self.beta),
            not target.minimize,
            searchspace.comp_rep_columns,
        ):
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
        # Decisions are stored last, since a call that fails returns no candidates. If a replaced or
        # withdrawn candidate is recommended again for the same measurements, the new decision
        # replaces the old decision.
        again = zip(decisions, _same(searchspace, decisions, recommended), strict=True)
        self.decisions = [
            each
            for each, own in again
            if each["state"] not in _NOT_RUN or each["after"] != len(measurements) or not own.any()
        ] + decided
        last = measurements[[*searchspace.parameter_names]].join(values).tail(_LAST)
        for each in searchspace.discrete.parameters:
            if each.is_numerical:
                last[each.name] = [closest_element(each.values, x) for x in last[each.name]]
        self.last_lines = last.to_dict("records")
        return recommended

    def chance_constraint(
        self, searchspace: SearchSpace, objective: Objective, measurements: pd.DataFrame
    ) -> ChanceConstraint:
        """Return the current constraint of a campaign, with models of all measurements."""
        models, _, measurements = self._models(searchspace, objective, measurements)
        return self._constraint(searchspace, measurements, self.decisions, models)

    def recommendation(
        self, campaign: Campaign, confidence: float = 0.95
    ) -> tuple[pd.DataFrame, Recommendation]:
        """Recommend a final candidate, and return it, as one row, with the `Recommendation`.

        Candidates that the campaign excludes are not considered.

        Args:
            campaign: A campaign with measurements.
            confidence: Confidence of each statement in the `Recommendation`, in (0, 1).

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
        """Return a table of the recommended candidates that were neither measured nor withdrawn.

        It has a column for each parameter, and the flags ``certified`` and ``replaced``.
        """
        names, flags = [*campaign.searchspace.parameter_names], ["certified", "replaced"]
        states = ({**each, "replaced": each["state"] == _REPLACED} for each in self._open(campaign))
        rows = [{**each["candidate"], **{flag: each[flag] for flag in flags}} for each in states]
        return pd.DataFrame(rows, columns=names + flags)

    def withdraw(self, campaign: Campaign, experiments: pd.DataFrame) -> None:
        """Take back recommendations that were not run.

        ``experiments`` is a table of recommendations, such as rows of `outstanding`. A withdrawn
        recommendation counts after all if it is measured later.

        Raises:
            InputDataError: If an experiment was not recommended, or was measured, or the table
                lacks a column.
        """
        _check_table("experiments", experiments, campaign.searchspace.parameter_names)
        decisions, withdrawn = self._open(campaign), set()
        for number, own in enumerate(_same(campaign.searchspace, decisions, experiments).T):
            free = [j for j in np.flatnonzero(own).tolist() if j not in withdrawn]
            if not free:
                raise InputDataError(
                    f"Row {number} of `experiments` is not a recommendation without a measurement: "
                    "see `outstanding`."
                )
            withdrawn.add(max(free, key=lambda j: (decisions[j]["state"] != _REPLACED, j)))
        for j in withdrawn:
            decisions[j]["state"] = _WITHDRAWN

    def _open(self, campaign: Campaign) -> list[_Stored]:
        """Return the decisions that have no measurement and were not withdrawn."""
        lines = _lines(campaign.searchspace, self.decisions, campaign.measurements)
        pairs = zip(self.decisions, lines, strict=True)
        return [each for each, line in pairs if line is None and each["state"] != _WITHDRAWN]

    def _models(
        self,
        searchspace: SearchSpace,
        objective: Objective | None,
        measurements: pd.DataFrame | None,
    ) -> tuple[dict[str, Any], Any, pd.DataFrame]:
        """Return the models by target name, the optimised target, and the measurements."""
        if searchspace.type is not SearchSpaceType.DISCRETE:
            raise UnsupportedError(
                "Each candidate is certified, so the space must be discrete: give continuous "
                "parameters a grid of values (NumericalDiscreteParameter)."
            )
        if objective is None or measurements is None or measurements.empty:
            raise InputDataError(
                "An objective and measurements are needed: recommend at random first, as does the "
                "initial recommender of a TwoPhaseMetaRecommender."
            )
        # BayBE plans constraints of an objective, which have no stated probability.
        own = (getattr(objective, name, ()) for name in ("constraints", "outcome_constraints"))
        if any(own):
            raise UnsupportedError(
                "The objective has constraints, which this recommender would ignore: state them as "
                "`limits` instead, and remove them from the objective."
            )
        names = [target.name for target in objective.targets]
        if len(set(names) - set(self.limits)) != 1 or not set(self.limits) < set(names):
            raise InputDataError(
                f"All but one of the targets {names} must have limits, got `limits` of "
                f"{[*self.limits]}: combine them in a ParetoObjective."
            )
        _check_table("measurements", measurements, [*searchspace.parameter_names, *names])
        target: Any
        (target,) = (each for each in objective.targets if each.name not in self.limits)
        if not isinstance(target.transformation, IdentityTransformation):
            raise UnsupportedError(
                f"The target {target.name!r} is optimised as measured: define it without a "
                f"{type(target.transformation).__name__}."
            )
        if self.acquisition_function is not None:
            raise UnsupportedError(
                "`acquisition_function` would be ignored: leave it None, and set `beta` of the "
                "upper confidence bound instead."
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
        """Return the constraint with the decisions that count.

        A decision about a measured candidate counts. Without a measurement, a withdrawn candidate
        does not count, and a replaced candidate counts once any replaced candidate was measured.
        """
        lines, columns = _lines(searchspace, decisions, measurements), searchspace.comp_rep_columns
        outcomes, trials = measurements[[*self.limits]].to_dict("records"), []
        states = _states(decisions, lines)
        left_out = (_WITHDRAWN,) if _LATE in states else _NOT_RUN
        for each, line, state in zip(decisions, lines, states, strict=True):
            # If the inputs have changed since the decision, its point is dropped.
            point = [each["inputs"][n] for n in columns] if {*each["inputs"]} == {*columns} else []
            if state not in left_out:
                trials.append(({**each, "point": point}, {} if line is None else outcomes[line]))
        remedy = (
            "add their measurements to the campaign, and `withdraw` recommendations that were "
            "never run; the recommender's `outstanding(campaign)` lists them"
        )
        account = stored.account_of(self.limits, self.level, self.budget, trials, remedy)
        return stored.constraint_of(account, models)

    def _asked_again(
        self,
        searchspace: SearchSpace,
        measurements: pd.DataFrame,
        pending_experiments: pd.DataFrame | None,
    ) -> list[_Stored]:
        """Return copies of the decisions, in which ``state`` is up to date.

        Decisions that a new call with these arguments replaces have the state `_REPLACED`.
        """
        states = _states(self.decisions, _lines(searchspace, self.decisions, measurements))
        if _LATE in states and _REPLACED in states:
            warn(
                "Recommendations that later calls replaced were measured, so all replaced ones "
                "count until they are measured: name running experiments in "
                "`pending_experiments`, and `withdraw` candidates of `outstanding` that never ran."
            )
        is_named, measured = pending_experiments is not None, len(measurements)
        replaced = [
            j
            for j, each in enumerate(self.decisions)
            if states[j] is None and _LATE not in states and (is_named or each["after"] == measured)
        ]
        for own in _same(searchspace, self.decisions, pending_experiments).T:
            named = [j for j in replaced if own[j]][:1]
            replaced = [j for j in replaced if j not in named]
        for j in replaced:
            states[j] = _REPLACED
        pairs = zip(self.decisions, states, strict=True)
        return [{**each, "state": state} for each, state in pairs]

    def _check_campaign(self, searchspace: SearchSpace, measurements: pd.DataFrame) -> None:
        """Raise ``InputDataError`` if less than the share `_MOST` of ``last_lines`` is found."""
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
                "`decisions` belong to another campaign: its last measurements are mostly missing. "
                "Give each campaign a recommender of its own. If the campaign is the same, set "
                "`last_lines` to []."
            )


def _check_table(name: str, table: pd.DataFrame | None, columns: Sequence[str]) -> None:
    """Raise ``InputDataError`` if rows of the argument ``name`` lack some of the ``columns``."""
    if table is None or not len(table):
        return
    if missing := [each for each in columns if each not in getattr(table, "columns", ())]:
        raise InputDataError(
            f"`{name}` must be a table with the columns {[*columns]}, but it lacks {missing}."
        )


def _same(
    searchspace: SearchSpace,
    decisions: Sequence[Mapping[str, Any]],
    experiments: pd.DataFrame | None,
) -> NDArray[np.bool_]:
    """Return whether experiments belong to decisions' candidates, ``decisions x experiments``.

    As in BayBE, an experiment belongs to the candidate with the nearest value of each parameter. A
    value outside of the parameter's grid, by more than half of the largest step, belongs to no
    candidate. If a candidate was recommended without some parameter, any value of this parameter
    matches.
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
            # A grid that is computed again may differ in the last digits, so allow for rounding.
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
    """Return the line of each decision's measurement in the table; None without a measurement.

    Measurements of a candidate that were known at a decision about it can only belong to earlier
    decisions. They are found by their values. If no line has the values of a known measurement, a
    line from a batch that the decision knew is regarded as its correction. Without such a line, the
    measurement was removed.
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
    # An early measurement may belong to fewer decisions than a late one, since later decisions
    # already knew it. So measurements are assigned in this order. Each goes to the latest free
    # decision, if possible one that is neither replaced nor withdrawn. Then late decisions keep
    # their measurements even if an early measurement is removed.
    for line in may_be.sum(axis=0).argsort(kind="stable").tolist():
        free = [j for j in np.flatnonzero(may_be[:, line]).tolist() if lines[j] is None]
        if free:
            lines[max(free, key=lambda j: (decisions[j]["state"] not in _NOT_RUN, j))] = line
    return lines


def _states(decisions: Sequence[_Stored], lines: Sequence[int | None]) -> list[str | None]:
    """Return the states of the decisions, given their lines in the table, or None."""
    return [
        each["state"] if line is None else _LATE if each["state"] in _OVERTAKEN else _RUN
        for each, line in zip(decisions, lines, strict=True)
    ]


def _points(searchspace: SearchSpace, experiments: pd.DataFrame) -> Tensor:
    """Encode experiments as points ``n x d``, as BayBE does."""
    return torch.tensor(searchspace.transform(experiments, allow_extra=True).to_numpy())
