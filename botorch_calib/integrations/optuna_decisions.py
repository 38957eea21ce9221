"""Chance constraints in Optuna, by a sampler whose decisions are stored with the trials.

It needs optuna-integration (``pip install botorch_calib[optuna]``). Nothing is kept in the sampler:
each process makes the constraint from the decisions about all trials, in any storage.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from optuna import Study
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from torch import Tensor

from botorch_calib._validation import check_open_unit, check_positive
from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.asynchronous.proposer import DelayAwareProposer
from botorch_calib.decisions import ChanceConstraint, Recommendation, recommend
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.chance_constrained_search import (
    LeastMargin,
    Place,
    best_certified,
    warn_uncertified,
)
from botorch_calib.decisions.rows import DecisionAccount
from botorch_calib.exceptions import CalibrationWarning, level_of_caller
from botorch_calib.integrations import _stored as stored
from botorch_calib.integrations._mixed_search import MixedSpace
from botorch_calib.integrations.optuna import SearchSpace, unit_cube
from botorch_calib.integrations.optuna_delays import (
    DelayAwareSampler,
    Look,
    in_order_of_end,
    known_noise,
    names_of_constraints,
    others_of,
    store,
)
from botorch_calib.models import CensoredDelayModel, stand_ins
from botorch_calib.models.delayed import Fit
from botorch_calib.models.process import like

#: The system attribute of a trial with the row of its decision, empty if it was drawn at random.
DECISION = "botorch_calib:decision"
#: The user attribute of a trial with the sides of constraints that are only known to be beyond.
BEYOND = "beyond"

# As "hallucinate" of `DelayAwareSampler`, but for a design: its points would not be certified.
_STRATEGY = DelayStrategy("ucb", "hallucinate", window=None, beta=4.0)


class _CertifiedProposer(DelayAwareProposer):
    """Chooses the best certified point; a sampler sets these attributes."""

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
        """The best certified point, else one to learn most from, given what runs."""
        bounds = like(self.constraint.model, self.bounds)
        settings = (self.search.num_restarts, self.search.raw_samples)
        place = Place(bounds, None, fixed, None, None, *settings)
        space = MixedSpace(place, rounding=lambda X: self.space.rounded(X.cpu()).to(X))

        def search(constraint: ChanceConstraint) -> tuple[Tensor, bool]:
            searched = stored.expanding(acqf, constraint, self.expansion_share)
            margin = LeastMargin(constraint)
            if choices is None:
                return space.best(searched, margin)
            return best_certified(searched, margin, Place(None, choices.to(bounds)))

        point, _ = stored.best(search, self.constraint, model.X_pending)
        return point.squeeze(0).to(self.bounds)


class ChanceConstrainedSampler(DelayAwareSampler):
    """A sampler whose trials meet the constraints with a stated probability, kept true.

    Constraints are Optuna's: ``trial.set_constraint(name, value)``, met if it is at most 0. After
    the first trials each one is the best that a `ChanceConstraint` certifies, as Optuna rounds it:
    by the upper confidence bound of the objective, with the expected values of running trials, or
    by log noisy expected hypervolume improvement of several objectives. Where no point is
    certified, the trial is one from which most can be learned.

    At most ``(1 - level) T + budget + level`` of the first ``T`` certified trials violate a
    constraint, see `ChanceConstraint`. Decisions are stored as system attributes of their trials,
    so this holds over restarts and processes, and for enqueued trials, which count if they are
    certified. A certified trial counts as a violation until its constraints are set, unless it
    never asked for a parameter. So set constraints as soon as they are known.

    **Bounds.** A trial that ran out of memory has used more than the limit: it states ``{"memory":
    1}`` as its user attribute ``"beyond"`` (-1 for less) and then sets the constraint to the bound,
    here 0. It counts as in `ChanceConstraint.observe`, whatever becomes of the trial.

    Args:
        level: Probability, in (0, 1), with which a trial shall meet all constraints.
        budget: As in `ChanceConstraint`.
        expansion_share: As in `optimize_chance_constrained`: for studies that start from few
            enqueued safe trials.
        fit, num_restarts, raw_samples, seed, device: As in `DelayAwareSampler`.
        n_startup_trials: Number of complete trials before the first decision. Some 8 for each
            parameter make the first decisions much better.
        independent_sampler: Draws trials until then, and conditional parameters.
        constraints_func: As in Optuna's samplers.

    Raises:
        InputDataError: If a setting is out of its range; when a trial is asked for, if no complete
            trial has constraints, or trials have different ones.

    Warns:
        CalibrationWarning: If trials are of another sampler or level.
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
        fit: Fit | None = None,
        num_restarts: int = 4,
        raw_samples: int = 512,
        n_startup_trials: int = 10,
        independent_sampler: BaseSampler | None = None,
        constraints_func: Callable[[FrozenTrial], Sequence[float]] | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self._level = check_open_unit("level", level)
        self._budget = check_positive("budget", budget, allow_inf=True)
        self._expansion_share = expansion_share
        super().__init__(
            _STRATEGY,
            fit=fit,
            num_restarts=num_restarts,
            raw_samples=raw_samples,
            n_startup_trials=n_startup_trials,
            independent_sampler=independent_sampler,
            seed=seed,
            device=device,
        )
        self._constraints_func = constraints_func

    def chance_constraint(self, study: Study) -> ChanceConstraint:
        """The constraint of a study as it stands: its decisions, and models of all trials."""
        return self._constraint(self._look_now(study))

    def recommendation(
        self, study: Study, confidence: float = 0.95
    ) -> tuple[dict[str, Any], Recommendation]:
        """The parameters to stop at, and what can be said of them, see `recommend`.

        The candidate is in the unit cube of Optuna's encoding; values are the objective's.

        Args:
            study: A study with one objective.
            confidence: Confidence of each statement, in (0, 1).

        Raises:
            UnsupportedError: If the study has several objectives.

        Warns:
            NotCertifiedWarning: If no point is safe with this confidence.
        """
        if len(study.directions) > 1:
            raise UnsupportedError("A recommendation is for one objective.")
        look, maximize = self._look_now(study), study.direction is StudyDirection.MAXIMIZE
        X, values = look.data.X, look.data.objectives if maximize else -look.data.objectives
        choices = look.space.points()
        if choices is None and look.space.is_rounded:
            choices = torch.cat([X.cpu(), look.space.sample(4 * self._search.raw_samples, seed=0)])
        stated = recommend(
            self._fit(X, values, look.noise[0]),
            self._constraint(look),
            unit_cube(X) if choices is None else None,
            None if choices is None else choices.to(X),
            confidence,
            maximize=maximize,
        )
        return look.space.parameters(stated.candidate.squeeze(0).cpu()), stated

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Mark the trial as one of this sampler, and decide about it if all of it is enqueued.

        Optuna asks a sampler only for parameters that are not given.
        """
        super().before_trial(study, trial)
        store(study, trial, DECISION, {})
        space = self.infer_relative_search_space(study, trial)
        if space and space.keys() <= trial.system_attrs.get("fixed_params", {}).keys():
            self.sample_relative(study, trial, space)

    def _is_startup(self, trials: Sequence[FrozenTrial]) -> bool:
        complete = sum(trial.state is TrialState.COMPLETE for trial in trials)
        return complete < max(self._n_startup_trials, 2)

    def _parameters(
        self, study: Study, trial: FrozenTrial, look: Look, given: dict[str, Any]
    ) -> dict[str, Any]:
        constraint = self._constraint(look)
        proposer: Any = self._proposer(look.space.dim)
        proposer.space, proposer.constraint = look.space, constraint
        proposer.expansion_share = self._expansion_share
        parameters = super()._parameters(study, trial, look, given)
        (row,) = constraint.decide(like(constraint.model, look.space.encoded([parameters])))
        store(study, trial, DECISION, row)
        # Other processes may have spent the budget meanwhile.
        if row["certified"] and self._account(others_of(study, trial)).budget_left <= 0.0:
            row = {**row, "certified": False}
            store(study, trial, DECISION, row)
        if not row["certified"]:
            warn_uncertified(constraint)
        return parameters

    def _strategy_for(self, look: Look) -> DelayStrategy:
        return super()._strategy_for(look) if look.data.objectives.shape[-1] > 1 else _STRATEGY

    def _unless_repeated(self, point: Tensor, proposer: DelayAwareProposer, look: Look) -> Tensor:
        return point  # which may be evaluated again

    def _look_at(self, study: Study, trials: Sequence[FrozenTrial], space: SearchSpace) -> Look:
        """The parent's, but to end beyond a limit is no failure: its constraint keeps away."""
        others = [trial for trial in trials if not _ended_beyond(trial)]
        return super()._look_at(study, others, space)._replace(trials=trials)

    def _look_now(self, study: Study) -> Look:
        trials = others_of(study)
        self._account(trials)  # which raises if there are no constraints yet
        search_space = self.infer_relative_search_space(study, trials[-1])
        return self._look_at(study, trials, SearchSpace(search_space))

    def _account(self, trials: Sequence[FrozenTrial]) -> DecisionAccount:
        limits = {name: (None, 0.0) for name in names_of_constraints(trials)}
        if not limits:
            raise InputDataError(
                "No complete trial has constraints: call `trial.set_constraint` in the objective."
            )
        return stored.account_of(limits, self._level, self._budget, _decided(trials, limits.keys()))

    def _constraint(self, look: Look) -> ChanceConstraint:
        """The constraint of the decisions, on models of all trials that have set it."""
        account = self._account(look.trials)
        largest = stored.INFINITE
        finite = [
            trial
            for trial in look.trials
            if all(abs(trial.constraints.get(name, largest)) < largest for name in account.limits)
        ]
        trials, X = in_order_of_end(finite, look.space)
        X = X.to(self._device)
        models: dict[str, Model] = {}
        beyond = [_beyond(trial, account.limits) for trial in trials]
        for place, name in enumerate(account.limits, look.data.objectives.shape[-1]):
            Y = X.new_tensor([[trial.constraints[name]] for trial in trials])
            noise = known_noise(trials, place)
            models[name] = self._fitted(place, X, Y, noise)
            sides = X.new_tensor([[each.get(name, 0)] for each in beyond])
            if sides.any():
                Y = stand_ins(models[name], X, Y, sides)
                models[name] = self._fitted(place + len(account.limits), X, Y, noise)
        return stored.constraint_of(account, models)


def _ended_beyond(trial: FrozenTrial) -> bool:
    """Whether a trial has no value, and the reason may be that it violates a constraint."""
    has_none = trial.state in (TrialState.FAIL, TrialState.PRUNED)
    violates = any(value > 0.0 for value in trial.constraints.values())
    return has_none and (violates or BEYOND in trial.user_attrs)


def _beyond(trial: FrozenTrial, names: Collection[str]) -> Mapping[str, int]:
    """On which side of its value each constraint is that is known only to be beyond it."""
    sides = trial.user_attrs.get(BEYOND, {})
    right = isinstance(sides, Mapping) and sides.keys() <= {*names}
    if right and all(side in (1, 0, -1) for side in sides.values()):
        return {name: int(side) for name, side in sides.items() if side}
    # A finished trial cannot be changed, so an error would end the study. Above is the side that
    # a limit is violated on.
    warnings.warn(
        f"The user attribute `{BEYOND}` of trial {trial.number} must be a dictionary of 1 (above), "
        f"-1 or 0 by the names of constraints, {[*names]}, got {sides!r}: each constraint of the "
        "trial is taken to be above its value.",
        CalibrationWarning,
        stacklevel=level_of_caller(),
    )
    return {name: 1 for name in names if name in trial.constraints}


def _decided(
    trials: Sequence[FrozenTrial], names: Collection[str]
) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Rows and constraints of decided trials or, before the first, of other samplers' trials."""
    decided = [
        trial
        for trial in trials
        if trial.system_attrs.get(DECISION, {}) != {}  # neither drawn at random, nor never run
        and not (trial.state.is_finished() and not trial.params)
    ] or [t for t in trials if t.state is TrialState.COMPLETE and DECISION not in t.system_attrs]
    return [
        (
            {**(each.system_attrs.get(DECISION) or {}), "beyond": _beyond(each, names)},
            each.constraints,
        )
        for each in decided
    ]
