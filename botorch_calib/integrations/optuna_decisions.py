"""Chance constraints in Optuna, by a sampler that stores its decisions with the trials.

The module needs optuna-integration (``pip install botorch_calib[optuna]``). Each process builds the
constraint anew from the decisions, which any storage of Optuna can hold.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from botorch_calib.integrations.optuna import SearchSpace, unit_cube

# isort: split
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.utils.sampling import manual_seed
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.study._constrained_optimization import _CONSTRAINTS_KEY
from optuna.trial import FrozenTrial, TrialState
from torch import Tensor

from botorch_calib.asynchronous.delay_strategy import DelayStrategy, strategy_of
from botorch_calib.asynchronous.designs import with_features
from botorch_calib.asynchronous.proposer import DelayAwareProposer, SearchSettings
from botorch_calib.decisions import ChanceConstraint, Recommendation
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import (
    LeastMargin,
    Place,
    best_certified,
    warn_uncertified,
)
from botorch_calib.decisions.rows import DecisionAccount, Limits
from botorch_calib.exceptions import NotCertifiedWarning, warn
from botorch_calib.integrations import _stored as stored
from botorch_calib.integrations import optuna_delays as delays
from botorch_calib.integrations._mixed_search import MixedSpace
from botorch_calib.integrations.optuna_delays import DECISION, DelayAwareSampler, Look, store
from botorch_calib.models import CensoredDelayModel, stand_ins
from botorch_calib.models.delayed import Fit
from botorch_calib.models.process import like

#: User attribute of a trial: 1 for each constraint above its value, -1 for each one below, by name.
BEYOND = "beyond"

# The strategy "hallucinate" of `DelayAwareSampler`, except that it has no ``spread_beyond``, since
# points of a space-filling design would not be certified.
_STRATEGY = DelayStrategy("ucb", "hallucinate", window=None, beta=4.0)


class _CertifiedProposer(DelayAwareProposer):
    """Chooses the best certified point; the sampler sets its attributes before each proposal."""

    space: SearchSpace
    constraint: ChanceConstraint
    expansion_share: float

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "space": None, "constraint": None}

    def _maximizer(
        self,
        acqf: AcquisitionFunction,
        model: CensoredDelayModel,
        choices: Tensor | None,
        fixed: dict[int, float],
        failed: Tensor,
    ) -> Tensor:
        """Return the best certified point of length ``d``, or else the most informative point."""
        bounds = like(self.constraint.model, self.bounds)
        space = _mixed(self.space, bounds, self.search)

        def search(constraint: ChanceConstraint) -> tuple[Tensor, bool]:
            searched = stored.expanding(acqf, constraint, self.expansion_share)
            margin = LeastMargin(constraint)
            if choices is None:
                return space.best(searched, margin)
            new = best_certified(searched, margin, Place(None, choices.to(bounds)))
            # ``choices`` lack the points of failed and running trials. If no new point is
            # certified, a certified point of such a trial is better than an uncertified new point.
            known = new if new[1] else space.best(searched, margin)
            return known if known[1] else new

        point, _ = stored.best(search, self.constraint, model.X_pending)
        return point.squeeze(0).to(self.bounds)

    def _leaves_borders(self, *_: Any) -> bool:
        return False  # a point that is moved away from failures might not be certified


class ChanceConstrainedSampler(DelayAwareSampler):
    """A sampler whose trials meet the constraints with a stated probability.

    A constraint is set by Optuna's ``trial.set_constraint(name, value)``, and is met if the value
    is at most 0. After the first trials, each trial is the best point, as rounded by Optuna, that a
    `ChanceConstraint` certifies. With one objective, the best point maximises the upper confidence
    bound, assuming that running trials yield their expected values. With several objectives, it
    maximises the log noisy expected hypervolume improvement. If no point is certified, the trial is
    the most informative point.

    At most ``(1 - level) T + budget + level`` of the first ``T`` certified trials violate a
    constraint, see `ChanceConstraint`. Decisions are stored as system attributes of their trials,
    so this bound holds over restarts and processes. It also holds for enqueued trials, which count
    if they are certified. A certified trial counts as a violation until its constraints are set,
    unless it ended without suggesting a parameter. So set constraints as soon as they are known.

    **Bounds.** A trial may show only that a constraint is above a bound. For example, a trial that
    runs out of memory uses more than the limit. It must set its user attribute ``"beyond"`` to
    ``{"memory": 1}`` (-1 for below), and then the constraint to the bound, here 0. The trial counts
    as in `ChanceConstraint.observe`, whatever its final state.

    Args:
        level: Probability, in (0, 1), with which a trial shall meet all constraints.
        budget: See `ChanceConstraint`.
        expansion_share: See `optimize_chance_constrained`; useful if the study starts from few
            enqueued safe trials.
        failures: See `DelayStrategy`. With each setting, points are certified if possible.
        fit, num_restarts, raw_samples, seed, device: See `DelayAwareSampler`.
        n_startup_trials: Number of complete trials before the first decision. The first decisions
            are much better after about 8 trials for each parameter.
        independent_sampler: Sampler that draws the first trials, and conditional parameters.
        constraints_func: Function of a trial that returns its constraints, as in Optuna's samplers.
        on_violation: Function that is called with the result of `last_safe` as soon as a trial has
            ended that violates a constraint, even if the trial raised an error.

    Raises:
        InputDataError: If a setting is out of its range. When a trial starts: if no complete trial
            has constraints, trials have different constraints, or a variance is negative.

    Warns:
        CalibrationWarning: If trials were chosen by another sampler, or with another level.
        NotCertifiedWarning: If a trial is not certified.

    Example:
        >>> def train(trial):
        ...     size = trial.suggest_float("size", 0.0, 1.0)
        ...     trial.set_constraint("memory", size - 0.7)  # at most 0
        ...     return (size - 0.9) ** 2
        >>> study = optuna.create_study(sampler=ChanceConstrainedSampler(level=0.9, seed=0))
        >>> study.optimize(train, n_trials=11)
    """

    _proposer_class = _CertifiedProposer

    def __init__(
        self,
        level: float = 0.9,
        *,
        budget: float = SIZE,
        expansion_share: float = 0.0,
        failures: str = "avoid",
        fit: Fit | None = None,
        num_restarts: int = 4,
        raw_samples: int = 512,
        n_startup_trials: int = 10,
        independent_sampler: BaseSampler | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        on_violation: Callable[[dict[str, Any] | None], object] | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        terms = stored.terms_of(level, budget, expansion_share)
        self._level, self._budget = terms["level"], terms["budget"]
        self._expansion_share = terms["expansion_share"]
        super().__init__(
            replace(_STRATEGY, failures=failures),
            fit=fit,
            num_restarts=num_restarts,
            raw_samples=raw_samples,
            n_startup_trials=max(n_startup_trials, 2),
            independent_sampler=independent_sampler,
            seed=seed,
            device=device,
        )
        self._constraints_func, self._on_violation = constraints_func, on_violation

    def chance_constraint(self, study: Study) -> ChanceConstraint:
        """Return the current constraint, with all decisions of a study and models of all trials.

        The constraint takes points in the unit cube, in Optuna's encoding of the current
        parameters.
        """
        return self._constraint(self._look_now(study))

    def recommendation(
        self, study: Study, confidence: float = 0.95
    ) -> tuple[dict[str, Any], Recommendation]:
        """Recommend final parameters, and return them with the `Recommendation`.

        The recommended point is in the unit cube of Optuna's encoding. Values have the units and
        the sign of the objective.

        Args:
            study: A study with one objective.
            confidence: Confidence of each statement in the `Recommendation`, in (0, 1).

        Raises:
            UnsupportedError: If the study has several objectives.

        Warns:
            NotCertifiedWarning: If no point is safe with this confidence.
        """
        if len(study.directions) > 1:
            raise UnsupportedError(
                "A recommendation is for one objective. Choose one of `study.best_trials` whose "
                "`chance_constraint(study).margin(X, confidence)` is at least 0."
            )
        look, maximize = self._look_now(study), study.direction is StudyDirection.MAXIMIZE
        values = look.objectives if maximize else -look.objectives
        models = self._fit(look.X, values, look.noise[0]), self._constraint(look)
        with manual_seed(0):
            space = _mixed(look.space, unit_cube(look.X), self._search)
            stated = space.recommended(*models, confidence, maximize)
        last = [trial for trial in look.trials if trial.state is TrialState.COMPLETE][-1]
        single = {
            name: last.params[name] for name, own in last.distributions.items() if own.single()
        }
        return {**single, **look.space.parameters(stated.candidate.squeeze(0).cpu())}, stated

    def last_safe(self, study: Study) -> dict[str, Any] | None:
        """Return the parameters of the latest trial that met all constraints.

        Uncertified trials are considered, too. A trial with a decision is preferred to trials
        without a decision. The result is None if no trial met all constraints.
        """
        trials = [trial for trial in self._trials(study) if trial.constraints]
        complete = [i for i, trial in enumerate(trials) if trial.state is TrialState.COMPLETE]
        # A running or failed trial may have set only some of the constraints. The latest complete
        # trial has set all constraints that existed then, and later trials may have further ones.
        recent = trials[max(complete, default=0) :]
        names = {name for trial in recent for name in trial.constraints}
        safe = [
            trial
            for trial in trials
            if names <= trial.constraints.keys()
            and max(trial.constraints.values()) <= 0.0
            and 1 not in _beyond(trial, trial.constraints).values()
        ]
        # Trials with a decision come last. Sorting is stable, so the last element is the latest
        # such trial or, without decisions, the latest trial.
        return sorted(safe, key=_was_decided)[-1].params if safe else None

    def outstanding(self, study: Study) -> list[int]:
        """Return the numbers of certified trials whose constraints have not been set.

        These trials count as violations. They include trials of killed processes, which Optuna
        regards as running.
        """
        trials = self._trials(study)
        names = {*delays.names_of_constraints(trials)}
        return [
            trial.number
            for trial in filter(_was_decided, trials)
            if trial.system_attrs[DECISION]["certified"] and names - trial.constraints.keys()
        ]

    def withdraw(self, study: Study, numbers: Iterable[int]) -> None:
        """Take back decisions about trials that were never run; mark running trials as failed.

        Do not withdraw a trial that was run, however it ended: the bound on violations would not
        hold without it. If Optuna's retry callback has run the trial again as another trial, the
        decision still applies to the other trial.

        Args:
            study: The study.
            numbers: Numbers of the trials, such as a part of `outstanding`.

        Raises:
            InputDataError: If a trial does not exist, or its constraints were set.
        """
        trials = {trial.number: trial for trial in self._trials(study)}
        for number in (chosen := [*numbers]):
            if number not in trials or trials[number].constraints:
                raise InputDataError(
                    f"Trial {number!r} cannot be withdrawn: it does not exist, or it was run, as "
                    f"it has set a constraint. Trials {self.outstanding(study)} are pending."
                )
        for number in chosen:
            if trials[number].state is TrialState.RUNNING:
                study.tell(number, state=TrialState.FAIL)
            withdrawn = f"{delays.WITHDRAWN}{number}"
            study._storage.set_study_system_attr(study._study_id, withdrawn, True)

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Mark the trial as this sampler's, and decide about it if all its parameters are given.

        Parameters are given if, for example, the trial was enqueued. Optuna asks a sampler only for
        parameters that are not given, so the sampler would not be asked about this trial.
        """
        super().before_trial(study, trial)
        if DECISION in trial.system_attrs:  # a trial that is run again has the same decision
            return
        store(study, trial, DECISION, {})
        given = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        space = SearchSpace.of_trials(self._trials(study), {})
        if space is not None and space.holding(given).is_held:
            self.sample_relative(study, trial, {})

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """Draw a parameter at random, or decide about its trial again if its range has changed.

        If a trial has a decision and no earlier trial has the parameter, the decision is removed.
        """
        given = {**trial.system_attrs.get(delays.PARAMETERS, {}), **trial.params}
        if trial.system_attrs.get(DECISION) and given.pop(param_name, None) is not None:
            with delays.one_at_a_time:
                chosen = self._chosen(study, trial, given, {param_name: param_distribution})
            if chosen:
                return chosen[param_name]
        elif trial.system_attrs.get(DECISION):
            if all(param_name not in each.params for each in self._trials(study, trial)):
                _leave_undecided(study, trial, f"its parameter {param_name!r} is new")
        return super().sample_independent(study, trial, param_name, param_distribution)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Finish a trial; remove its decision if it was run at another point.

        If the trial violates a constraint, ``on_violation`` is called. A bound that a trial names
        without setting its constraint is reported by a warning.
        """
        super().after_trial(study, trial, state, values)
        decided = trial.system_attrs.get(delays.PARAMETERS, {})
        asked_all = trial.params and state is TrialState.COMPLETE
        run = trial.params if asked_all else {**decided, **trial.params}
        # Compare strings, since NaN may be a choice, and NaN does not equal itself.
        others = [
            name for name, x in decided.items() if name not in run or str(run[name]) != str(x)
        ]
        if trial.system_attrs.get(DECISION) and others:
            _leave_undecided(study, trial, f"it was run with another {others[0]!r}")
        trial = study._storage.get_trial(trial._trial_id)  # with what was stored just now
        sides = trial.user_attrs.get(BEYOND)
        for name, side in sides.items() if isinstance(sides, Mapping) else ():
            if name not in trial.constraints:
                names = delays.names_of_constraints(self._trials(study))
                if trial.constraints and name not in names:
                    continue  # a misspelt name, see `_beyond`
                warn(
                    f"Trial {trial.number} has `{BEYOND}` for {name!r}, but no value of this "
                    f"constraint, so its outcome is unknown: call `trial.set_constraint({name!r}, "
                    "bound)` as well, after the attribute is set."
                )
            elif side == 1 and trial.constraints[name] == 0.0:
                # The constraint is above 0. Optuna regards 0 as feasible, and any larger value as
                # infeasible, so the smallest positive number is stored.
                store(study, trial, f"{_CONSTRAINTS_KEY}:{name}", math.ulp(0.0))
        if self._on_violation is not None:
            ended = study._storage.get_trial(trial._trial_id)
            if any(value > 0.0 for value in ended.constraints.values()):
                self._on_violation(self.last_safe(study))

    def _chosen(self, study: Study, trial: FrozenTrial, *given: Any) -> dict[str, Any]:
        parameters, least = super()._chosen(study, trial, *given), self._n_startup_trials
        states = [each.state for each in self._trials(study, trial)]
        if not parameters and states.count(TrialState.COMPLETE) >= least:
            _leave_undecided(
                study, trial, f"fewer than {least} trials have all present parameters and limits"
            )
        return parameters

    def _is_startup(self, look: Look) -> bool:
        return len(look.X) < self._n_startup_trials

    def _parameters(self, study: Study, trial: FrozenTrial, look: Look) -> dict[str, Any]:
        constraint = self._constraint(look)
        proposer: Any = self._proposer(look.space.dim)
        proposer.space, proposer.constraint = look.space, constraint
        proposer.expansion_share = self._expansion_share
        parameters = super()._parameters(study, trial, look)
        (row,) = constraint.decide(like(constraint.model, look.space.encoded([parameters])))
        row = {**row, "id": uuid.uuid4().hex}
        store(study, trial, DECISION, row)
        # Other processes may have spent the budget meanwhile. So the account is computed again once
        # this decision is stored, and the decision is revoked if no budget is left.
        if row["certified"] and self._account(self._trials(study, trial)).budget_left <= 0.0:
            row = {**row, "certified": False}
            store(study, trial, DECISION, row)
        if not row["certified"]:
            warn_uncertified(constraint)
        return parameters

    def _strategy_for(self, look: Look) -> DelayStrategy:
        several = look.objectives.shape[-1] > 1
        return super()._strategy_for(look) if several else strategy_of(self._strategy)

    def _unless_repeated(self, point: Tensor, proposer: DelayAwareProposer, look: Look) -> Tensor:
        return point  # a certified point may be evaluated again

    def _look_at(self, study: Study, trials: Sequence[FrozenTrial], space: SearchSpace) -> Look:
        """Return the state of the study, without failures of trials that ended beyond a limit.

        The constraint already keeps the search away from the points of these trials.
        """
        others = [trial for trial in trials if not _ended_beyond(trial)]
        return super()._look_at(study, others, space)._replace(trials=trials)

    def _look_now(self, study: Study) -> Look:
        trials = self._trials(study)
        self._account(trials)  # raises an error if there are no constraints yet
        space = SearchSpace.of_trials(trials, {})
        look = None if space is None else self._look_at(study, trials, space)
        if look is None or len(look.X) < 2:
            raise InputDataError(
                "Fewer than two complete trials have all parameters and constraints of the latest "
                "trial: run more trials first."
            )
        return look

    def _account(
        self, trials: Sequence[FrozenTrial], space: SearchSpace | None = None
    ) -> DecisionAccount:
        """Return the account of the decisions about trials.

        With a ``space``, the points are encoded in it. Otherwise they are as stored.
        """
        limits = {name: (None, 0.0) for name in delays.names_of_constraints(trials)}
        if not limits:
            raise InputDataError(
                "No complete trial has constraints: call `trial.set_constraint` in the objective."
            )
        decided = _decided(trials, limits, space)
        remedy = (
            "set the constraints of these trials; the sampler's `outstanding(study)` lists their "
            "numbers, and `withdraw(study, numbers)` takes back trials that were never run"
        )
        return stored.account_of(limits, self._level, self._budget, decided, remedy)

    def _constraint(self, look: Look) -> ChanceConstraint:
        """Return the constraint with all decisions, and models of all trials with finite values."""
        account = self._account(look.trials, look.space)
        largest = stored.INFINITE
        finite = [
            trial
            for trial in look.trials
            if all(abs(trial.constraints.get(name, largest)) < largest for name in account.limits)
        ]
        trials, X = delays.in_order_of_end(finite, look.space)
        X = X.to(self._device)
        models: dict[str, Model] = {}
        beyond = [_beyond(trial, account.limits) for trial in trials]
        for place, name in enumerate(account.limits, look.objectives.shape[-1]):
            Y = X.new_tensor([[trial.constraints[name]] for trial in trials])
            noise = delays.known_noise(trials, place)
            models[name] = self._fitted(place, X, Y, noise)
            sides = X.new_tensor([[each.get(name, 0)] for each in beyond])
            if sides.any():
                Y = stand_ins(models[name], X, Y, sides)
                models[name] = self._fitted(place + len(account.limits), X, Y, noise)
        return stored.constraint_of(account, models)


def _mixed(space: SearchSpace, cube: Tensor, search: SearchSettings) -> MixedSpace:
    """Return the `MixedSpace` of all listed points of ``space``, or of a box if there is no list.

    The box is ``cube``, ``2 x d``, with columns of held parameters fixed at their values, which may
    be outside of the unit cube.
    """
    if space.points is not None:
        return MixedSpace(Place(None, space.points.to(cube)))
    bounds = with_features(cube, space.fixed)
    place = Place(bounds, num_restarts=search.num_restarts, raw_samples=search.raw_samples)
    if not space.is_rounded:
        return MixedSpace(place)
    return MixedSpace(place, rounding=lambda X: space.rounded(X.cpu()).to(X))


def _was_decided(trial: FrozenTrial) -> bool:
    """Whether the trial has a decision and may have been run."""
    is_empty = trial.state.is_finished() and not (trial.params or trial.constraints)
    return trial.system_attrs.get(DECISION, {}) != {} and not is_empty


def _leave_undecided(study: Study, trial: FrozenTrial, why: str) -> None:
    """Remove the decision about a trial, if there is one, and warn with the reason ``why``."""
    store(study, trial, DECISION, {})
    warn(
        f"Trial {trial.number} is not certified, and nothing is stated about it: {why}.",
        NotCertifiedWarning,
    )


def _ended_beyond(trial: FrozenTrial) -> bool:
    """Whether a trial failed or was pruned, possibly because it violates a constraint."""
    has_none = trial.state in (TrialState.FAIL, TrialState.PRUNED)
    violates = any(value > 0.0 for value in trial.constraints.values())
    return has_none and (violates or BEYOND in trial.user_attrs)


def _beyond(trial: FrozenTrial, names: Collection[str]) -> Mapping[str, int]:
    """Return 1 for each constraint above its stored value, -1 for each one below, by name.

    ``names`` are the names of all constraints.
    """
    sides = trial.user_attrs.get(BEYOND, {})
    right = isinstance(sides, Mapping) and sides.keys() <= {*names}
    if right and all(side in (1, 0, -1) for side in sides.values()):
        return {name: int(side) for name, side in sides.items() if side}
    # The attribute is malformed. A finished trial cannot be changed, so an error would end the
    # study. A constraint may be violated if it is above its value, so this side is assumed.
    warn(
        f"The user attribute `{BEYOND}` of trial {trial.number} must be a dictionary of 1 (above), "
        f"-1 or 0 by the names of constraints, {[*names]}, got {sides!r}: each constraint of the "
        "trial is taken to be above its value."
    )
    return {name: 1 for name in names if name in trial.constraints}


def _decided(
    trials: Sequence[FrozenTrial], limits: Limits, space: SearchSpace | None
) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Return the row and the constraints of each trial with a decision.

    If there is none, the result is for the complete trials of other samplers, whose rows have no
    decision. With a ``space``, points are encoded in it.
    """
    decided = [*filter(_was_decided, trials)] or [
        t for t in trials if t.state is TrialState.COMPLETE and DECISION not in t.system_attrs
    ]
    # A trial that is run again, or copied with its study, shares one decision with its copies. It
    # counts once, with the largest value of each constraint.
    rows: dict[Any, tuple[dict[str, Any], dict[str, float]]] = {}
    for trial in decided:
        row = {**(trial.system_attrs.get(DECISION) or {}), "beyond": _beyond(trial, limits)}
        if space is not None:
            x = delays.encoded(space, trial)
            row["point"] = [] if x is None else x.tolist()
        _, came = rows.setdefault(row.get("id", trial.number), (row, {}))
        for name, value in trial.constraints.items():
            came[name] = max(value, came.get(name, value))
    return [*rows.values()]
