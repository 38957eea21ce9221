"""Delay-aware proposals in Optuna, by a sampler that uses the states of all trials.

The module needs optuna-integration (``pip install botorch_calib[optuna]``). For each proposal the
sampler records the trials of the study in a `FeedbackLedger`. Then a `DelayAwareProposer` chooses
the point, given the ledger. Optuna provides storages, retries and heartbeats.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from botorch_calib.integrations.optuna import SearchSpace, improvement, unit_cube, without

# isort: split
import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from botorch.settings import validate_input_scaling
from optuna import Study
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from optuna_integration import BoTorchSampler
from torch import Tensor

from botorch_calib._validation import check_callable, check_instance, check_variance
from botorch_calib.asynchronous.delay_strategy import DelayStrategy, strategy_of
from botorch_calib.asynchronous.failed_queries import (
    FeasibleAcquisition,
    feasibility_of,
    with_hanging_failed,
)
from botorch_calib.asynchronous.proposer import FIT, DelayAwareProposer, SearchSettings
from botorch_calib.asynchronous.refits import ScheduledFit, fit_single_task_gp, fit_with_noise
from botorch_calib.calibration import Calibrator
from botorch_calib.decisions.chance_constrained_search import repeated_points
from botorch_calib.integrations._stored import INFINITE
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.ledger.trials import are_among
from botorch_calib.models import CalibratedModel, CensoredDelayModel
from botorch_calib.models.delayed import Fit

# Threads that share a sampler make proposals one at a time. Each proposal takes account of earlier
# proposals, and sets torch's random state. The lock is not an attribute of a sampler, since a
# sampler must be picklable.
one_at_a_time = threading.RLock()

RUNNING = TrialState.RUNNING
# PARAMETERS: System attribute of a trial with all its parameters, which other processes need before
# the objective suggests them.
# YVAR: User attribute of a trial with the noise variances of its outcomes.
PARAMETERS, YVAR = "botorch_calib:parameters", "Yvar"
#: System attribute of a trial: the row of its decision, empty if the trial was drawn at random.
DECISION = "botorch_calib:decision"
#: Prefix of a study's system attributes. Each is followed by the number of a trial that was
#: withdrawn, since it was never run.
WITHDRAWN = "botorch_calib:withdrawn:"


class Look(NamedTuple):
    """The state of a study when a trial starts; points are in the unit cube."""

    trials: Sequence[FrozenTrial]
    space: SearchSpace
    ledger: FeedbackLedger  # all trials, with the first objective, to be maximised
    # Data of the ``n`` complete trials, in the order in which they ended: points ``n x d``, and a
    # column for each objective, to be maximised, and for each constraint.
    X: Tensor
    objectives: Tensor
    constraints: Tensor
    noise: list[Tensor | None]  # variances ``n x 1`` of each outcome, if known


class DelayAwareSampler(BoTorchSampler):
    """A sampler for parallel workers, which takes account of running and failed trials.

    With one objective, each running trial is assumed to have the worst value (censored) or its
    expected value (hallucinated), according to ``strategy``. With constraints or several
    objectives, the sampler maximises the acquisition function of `calibrated_candidates_func`,
    averaged over the possible outcomes of running trials. The search keeps away from trials that
    failed or hang, see ``failures`` of `DelayStrategy`.

    If no parameter is continuous and there are at most 2048 points, the sampler compares all
    points. It repeats the point of a failed, pruned or running trial only if no other point
    remains. In other spaces, the sampler replaces a point that Optuna would round to an earlier
    trial's point.

    **Known noise.** The user attribute ``"Yvar"`` of a trial holds noise variances: a number for
    the objective, or a list for objectives and then constraints, which may be shorter. An outcome
    without a variance, or with None, has the fitted variance (`PartlyKnownNoiseGP`).

    Args:
        strategy: ``"hallucinate"``, ``"ucb"``, ``"ts"`` or a `DelayStrategy`.
        calibrator: Calibrator that replays the complete trials in the order of their ends.
            Each fit starts from an untrained copy of the calibrator (default: no calibration).
        fit: See `DelayAwareProposer`. Inputs are in the unit cube; the outcome is a maximised
            objective or a constraint (default: a `PartlyKnownNoiseGP`).
        censor_value: The worst value that the objective can have, as a trial returns it (default:
            the worst value observed so far).
        num_restarts, raw_samples: See `SearchSettings`.
        n_startup_trials: Number of trials, complete or running, before the first proposal.
        independent_sampler: Sampler that draws the first trials, and conditional parameters.
        seed: Seed of all random numbers. Processes that share a study need different seeds.
        device: Device of the model, and of the data for ``fit`` (default: the CPU).

    Raises:
        InputDataError: If a setting is unknown or out of its range. When a trial starts: if
            complete trials have different constraints, or a variance is negative.

    Warns:
        InputDataWarning: If known variances are ignored, because ``fit`` does not take them.

    Example:
        >>> study = optuna.create_study(sampler=DelayAwareSampler(seed=0))
        >>> study.optimize(lambda trial: trial.suggest_float("x", 0, 1) ** 2, n_trials=12, n_jobs=2)
    """

    _proposer_class = DelayAwareProposer

    def __init__(
        self,
        strategy: str | DelayStrategy = "hallucinate",
        *,
        calibrator: Calibrator | None = None,
        fit: Fit | None = None,
        censor_value: float | None = None,
        num_restarts: int = 10,
        raw_samples: int = 256,
        n_startup_trials: int = 10,
        independent_sampler: BaseSampler | None = None,
        seed: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        if calibrator is not None:
            check_instance("calibrator", calibrator, Calibrator)
        if independent_sampler is not None:
            check_instance("independent_sampler", independent_sampler, BaseSampler)
        check_callable("fit", fit, "a function of `X` and `Y`")
        self._strategy = strategy
        try:
            self._device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError) as error:
            raise InputDataError(
                f'`device` must be a device of torch, such as "cuda", got {device!r}.'
            ) from error
        self._fit = partial(
            _fitted,
            fit=fit_single_task_gp if fit is None else fit,
            calibrator=calibrator,
            device=self._device,
        )
        self._censor_value = censor_value
        # Without a `seed` Optuna's sampler is seeded at random, and so is the proposer.
        base = _random_seed() if seed is None else seed
        self._search = SearchSettings(num_restarts, raw_samples, base)
        self._seeded_in: int | None = os.getpid()
        self._proposers: dict[int, DelayAwareProposer] = {}
        self._fits: dict[tuple[int, int], ScheduledFit] = {}
        self._proposer(1)  # raises an error now if a setting is wrong
        FeedbackLedger(1, censor_value=censor_value)
        super().__init__(
            n_startup_trials=n_startup_trials, independent_sampler=independent_sampler, seed=seed
        )

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions of the parameters that complete trials have in common, by name.

        A parameter has its latest range.
        """
        space = SearchSpace.of_trials(self._trials(study), {})
        return {} if space is None else space.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the trial's parameters in ``search_space``, by name.

        Given parameters, and all parameters of a trial that is retried, are kept.
        """
        with one_at_a_time:
            parameters = trial.system_attrs.get(PARAMETERS)  # set if the trial is retried
            if parameters is None:
                # Given parameters are from an enqueued trial or Optuna's `PartialFixedSampler`. The
                # latter removes its parameters from ``search_space``, but all parameters are chosen
                # together.
                fixed = getattr(study.sampler, "_fixed_params", {})
                given = {**fixed, **trial.system_attrs.get("fixed_params", {}), **trial.params}
                parameters = self._chosen(study, trial, given, {})
        return {name: parameters[name] for name in search_space if name in parameters}

    def _trials(self, study: Study, trial: FrozenTrial | None = None) -> list[FrozenTrial]:
        """Return the trials of a study that have started, except for ``trial``.

        Trials are in the order of their numbers. Withdrawn trials that have set no constraint are
        left out. If Optuna's retry callback runs a failed trial again, only the later trial is
        included.
        """
        # Read the storage, since with Optuna's `HyperbandPruner` ``study`` lists only the trials of
        # the same bracket.
        every = study._storage.get_all_trials(study._study_id, deepcopy=False)
        attrs = study._storage.get_study_system_attrs(study._study_id)
        begun = [
            each
            for each in every
            if each.state is not TrialState.WAITING
            and (f"{WITHDRAWN}{each.number}" not in attrs or each.constraints)
        ]
        later = {n: each for each in begun for n in each.system_attrs.get("retry_history", ())}
        return [
            each
            for each in begun
            if (trial is None or each.number != trial.number)
            and not (each.number in later and _is_run_again(each, later[each.number]))
        ]

    def _chosen(
        self,
        study: Study,
        trial: FrozenTrial,
        given: Mapping[str, Any],
        ranges: Mapping[str, BaseDistribution],
    ) -> dict[str, Any]:
        """Choose and store all parameters of a trial; return {} if they are to be drawn at random.

        ``given`` parameters keep their values. ``ranges`` replaces the latest ranges, by name.
        """
        # Read the trials once, so that a trial that ends meanwhile is counted exactly once.
        trials = self._trials(study, trial)
        space = SearchSpace.of_trials(trials, ranges)
        if space is None or self._is_startup(look := self._look_at(study, trials, space)):
            return {}
        parameters = self._parameters(study, trial, look._replace(space=space.holding(given)))
        store(study, trial, PARAMETERS, parameters)
        return parameters

    def _is_startup(self, look: Look) -> bool:
        counted = [each for each in look.trials if each.state in (TrialState.COMPLETE, RUNNING)]
        return len(counted) < self._n_startup_trials

    def _parameters(self, study: Study, trial: FrozenTrial, look: Look) -> dict[str, Any]:
        """Return all parameters of a trial; given parameters are held in ``look.space``."""
        if look.space.is_held:
            return look.space.held
        return look.space.parameters(self._point(look))

    def _look_at(self, study: Study, trials: Sequence[FrozenTrial], space: SearchSpace) -> Look:
        """Return the state of the study, with the trials that have all parameters of ``space``."""
        signs = [-1.0 if each is StudyDirection.MINIMIZE else 1.0 for each in study.directions]
        worst = None if self._censor_value is None else signs[0] * self._censor_value
        ledger = FeedbackLedger(space.dim, censor_value=worst, clock="seconds")
        for trial, (start, end) in zip(trials, places_in_time(trials), strict=True):
            x = encoded(space, trial)
            if x is not None:
                _record(ledger, trial, x, signs[0], start, end)
        names = names_of_constraints(trials)
        counts = [len(signs), len(names)]
        complete = [
            trial
            for trial in trials
            if trial.state is TrialState.COMPLETE
            and trial.constraints.keys() >= {*names}
            and is_finite(trial)
        ]
        ended, X = in_order_of_end(complete, space)
        Y = torch.tensor(
            [[*trial.values, *(trial.constraints[name] for name in names)] for trial in ended],
            dtype=torch.double,
        ).reshape(len(ended), sum(counts))
        objectives, constraints = Y.to(self._device).split(counts, dim=-1)
        objectives = objectives * objectives.new_tensor(signs)
        noise = [known_noise(ended, place) for place in range(sum(counts))]
        return Look(trials, space, ledger, X.to(self._device), objectives, constraints, noise)

    def _point(self, look: Look) -> Tensor:
        """Return the next point, of length ``d``, in the unit cube."""
        proposer = self._proposer(look.space.dim)
        proposer.strategy = self._strategy_for(look)
        proposer.fixed_features, proposer.choices = look.space.fixed, None
        points = look.space.points
        if points is not None:
            observed = are_among(look.ledger.statuses(), (TrialStatus.OBSERVED,))
            proposer.choices = without(points, look.ledger.queries()[~observed])
        with repeated_points():
            point = proposer(look.ledger)
            if points is None and look.space.is_rounded:
                point = self._unless_repeated(point, proposer, look)
        return point

    def _strategy_for(self, look: Look) -> DelayStrategy:
        """Return the strategy; if there are several outcomes, it maximises `improvement`.

        Outcomes are the objectives and the constraints.
        """
        strategy = strategy_of(self._strategy)
        if len(look.noise) == 1 or callable(strategy.acquisition):
            return strategy
        return replace(
            strategy,
            acquisition=partial(self._improvement, look, strategy),
            imputation="none",  # the improvement averages over running trials
            window=None,
            failures="ignore",  # `_improvement` handles them, as the proposer has one outcome only
        )

    def _improvement(
        self, look: Look, strategy: DelayStrategy, model: CensoredDelayModel, ledger: FeedbackLedger
    ) -> AcquisitionFunction:
        """Return the `improvement`, given models of all outcomes, reduced where trials may fail.

        ``model`` is the proposer's model of the first objective.
        """
        now = ledger.now()
        if strategy.failures != "ignore":
            ledger = with_hanging_failed(ledger, now)
        pending = ledger.pending(now).to(self._device)
        outcomes = torch.cat([look.objectives, look.constraints], dim=-1).split(1, dim=-1)
        models = [
            self._fitted(place, look.X, Y, Yvar) if place else model.model
            for place, (Y, Yvar) in enumerate(zip(outcomes, look.noise, strict=True))
        ]
        acqf = improvement(
            models, look.X, look.objectives, look.constraints, pending if len(pending) else None
        )
        strategy = replace(strategy, imputation="hallucinate")
        feasibility = feasibility_of(ledger, now, strategy, self._proposer(ledger.dim).bounds)
        if feasibility is None:
            return acqf
        return FeasibleAcquisition(acqf, acqf.model, feasibility, poor=None)

    def _fitted(self, place: int, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> Model:
        """Return the model of the outcome with index ``place``, objectives before constraints.

        The model is refitted on the proposer's schedule, and conditioned on later data in between.
        """
        proposer = self._proposer(X.shape[-1])
        key = X.shape[-1], place
        if key not in self._fits:
            stream = self._search.seed, FIT, place
            self._fits[key] = ScheduledFit(self._fit, proposer.refit_every, self._device, stream)
        return self._fits[key].of_data(X, Y, Yvar)

    def _unless_repeated(self, point: Tensor, proposer: DelayAwareProposer, look: Look) -> Tensor:
        """Return ``point``, or the best new point of a sample if Optuna would repeat a known point.

        Optuna would repeat a known point if ``point`` is rounded to it.
        """
        known = look.ledger.queries()
        if without(look.space.rounded(point.unsqueeze(0)), known) is not None:
            return point
        seed = self._search.seed + len(look.ledger)
        sample = look.space.sample(self._search.raw_samples, seed)
        proposer.choices = without(sample.unique(dim=0), known)
        return point if proposer.choices is None else proposer(look.ledger)

    def reseed_rng(self) -> None:
        """Draw new seeds, once in each process and for each copy of the sampler.

        Threads share the sampler, so they get different random numbers without new seeds. Within a
        process the seed must not change, since it also determines the space-filling design.
        """
        with one_at_a_time:
            super().reseed_rng()
            if self._seeded_in == os.getpid():
                return
            self._seeded_in = os.getpid()
            self._search = replace(self._search, seed=_random_seed())
            for proposer in self._proposers.values():
                proposer.search = self._search

    def __getstate__(self) -> dict[str, Any]:
        # A copy continues with the same random numbers, unless it is reseeded. Without the process
        # id, `reseed_rng` draws new seeds even in the same process.
        return {**self.__dict__, "_seeded_in": None}

    def _proposer(self, dim: int) -> DelayAwareProposer:
        """Return the proposer for points with ``dim`` columns, created at the first call.

        The number of columns may change during a study.
        """
        if dim not in self._proposers:
            cube = unit_cube(torch.zeros(1, dim, dtype=torch.double, device=self._device))
            self._proposers[dim] = self._proposer_class(
                cube, self._strategy, self._fit, num_initial=0, search=self._search
            )
        return self._proposers[dim]


def encoded(space: SearchSpace, trial: FrozenTrial) -> Tensor | None:
    """Return a trial's point, of length ``d``; None if a parameter or category is unknown."""
    parameters = trial.params
    if trial.state is RUNNING:  # Optuna stores parameters only when the objective suggests them
        parameters = trial.system_attrs.get(PARAMETERS, {}) | parameters
    if not space.distributions.keys() <= parameters.keys():
        return None
    with suppress(ValueError):  # a choice that is no longer offered
        return space.encoded([parameters])[0]
    return None


def in_order_of_end(
    trials: Sequence[FrozenTrial], space: SearchSpace
) -> tuple[list[FrozenTrial], Tensor]:
    """Return trials in the order in which they ended, and their points ``n x d``.

    Trials whose points are not known, see `encoded`, are left out.
    """
    ends = [end for _, end in places_in_time(trials)]
    ended = [trials[place] for place in np.argsort(ends, kind="stable")]
    known = [(trial, x) for trial in ended if (x := encoded(space, trial)) is not None]
    X = torch.stack([x for _, x in known]) if known else torch.zeros(0, space.dim)
    return [trial for trial, _ in known], X


def names_of_constraints(trials: Sequence[FrozenTrial]) -> list[str]:
    """Return the names of the constraints of the latest complete trial.

    The names are in the order of the first complete trial with the same names. Earlier trials may
    have other constraints, since a constraint may have been added to the study. An
    ``InputDataError`` is raised if a later trial has other constraints, or an earlier trial has
    additional ones. Trials without constraints are ignored, since constraints cannot be set after
    the end of a trial.
    """
    complete = [trial for trial in trials if trial.state is TrialState.COMPLETE]
    names = [[*trial.constraints] for trial in complete if trial.constraints]
    present = {*names[-1]} if names else set()
    first = next((place for place, each in enumerate(names) if {*each} == present), 0)
    for place, other in enumerate(names):
        if {*other} != present and (place > first or {*other} > present):
            raise InputDataError(
                f"Complete trials have the constraints {names[-1]} and {other}: set the same ones, "
                "or copy the trials that have them to a new study by `add_trials`."
            )
    return names[first] if names else []


def known_noise(trials: Sequence[FrozenTrial], place: int) -> Tensor | None:
    """Return noise variances ``n x 1`` of the outcome with index ``place``, objectives first.

    Unknown variances are NaN. The result is None if all variances are unknown.
    """
    each = torch.tensor([_variance(trial, place) for trial in trials], dtype=torch.double)
    return None if each.isnan().all() else each.unsqueeze(-1)


def _variance(trial: FrozenTrial, place: int) -> float:
    stated = trial.user_attrs.get(YVAR)
    values = stated if isinstance(stated, Sequence) else [stated]
    value = values[place] if place < len(values) else None
    return math.nan if value is None else check_variance(f"{YVAR} of trial {trial.number}", value)


def is_finite(trial: FrozenTrial) -> bool:
    """Whether all values and constraints of a complete trial are below `INFINITE` in magnitude."""
    return all(abs(value) < INFINITE for value in [*trial.values, *trial.constraints.values()])


def store(study: Study, trial: FrozenTrial, key: str, value: Any) -> None:
    """Store a system attribute of a trial, as Optuna's own samplers do."""
    study._storage.set_trial_system_attr(trial._trial_id, key, value)


def _is_run_again(trial: FrozenTrial, later: FrozenTrial) -> bool:
    """Whether ``trial`` has failed and ``later`` repeats it, with the same decision and parameters.

    Contents are compared, since the numbers in a retry history are wrong if the study was copied.
    """
    decisions = [each.system_attrs.get(DECISION) for each in (trial, later)]
    same = decisions[0] == decisions[1] and trial.params.items() <= later.params.items()
    return trial.state is TrialState.FAIL and same


def places_in_time(trials: Sequence[FrozenTrial]) -> list[tuple[int, int]]:
    """Return a pair for each trial: the ranks of its start and end among all trials' times.

    The ledger gets ranks, since it would ignore times that are later than its own clock. The end of
    a running trial has the highest rank. If a clock was set back and a trial seems to end before it
    starts, both ranks are equal.
    """
    starts = [t.datetime_start.timestamp() if t.datetime_start else -math.inf for t in trials]
    ends = [t.datetime_complete.timestamp() if t.datetime_complete else math.inf for t in trials]
    _, places = np.unique([starts, ends], return_inverse=True)
    first, last = places.reshape(2, -1)
    return list(zip(first.tolist(), np.maximum(first, last).tolist(), strict=True))


def _record(
    ledger: FeedbackLedger, trial: FrozenTrial, x: Tensor, sign: float, start: int, end: int
) -> None:
    """Record a trial at the point ``x``, of length ``d``, in the ledger.

    ``sign`` is -1 for an objective that is minimised, else 1. ``start`` and ``end`` are the trial's
    `places_in_time`.
    """
    number = ledger.submit(x, time=start)
    if trial.state is TrialState.PRUNED:
        ledger.abandon(number, time=end)
    elif trial.state is TrialState.COMPLETE and is_finite(trial):
        ledger.tell(number, sign * trial.values[0], _variance(trial, 0), time=end)
    elif trial.state is not RUNNING:
        ledger.fail(number, time=end)


def _random_seed() -> int:
    return int(np.random.default_rng().integers(2**31))


def _fitted(
    X: Tensor,
    Y: Tensor,
    Yvar: Tensor | None = None,
    *,
    fit: Fit,
    calibrator: Calibrator | None,
    device: torch.device,
) -> Model:
    """Fit a Gaussian process to ``X``, ``n x d``, and ``Y``, ``n x 1``, on the ``device``.

    ``Yvar`` holds known noise variances, ``n x 1``. With a calibrator, the model is calibrated.
    """
    noise = None if Yvar is None else Yvar.to(device)
    with validate_input_scaling(False):  # points outside of the current space are data, too
        gp = fit_with_noise(fit, X.to(device), Y.to(device), noise)
    return gp if calibrator is None else CalibratedModel.from_history(gp, calibrator.fresh())
