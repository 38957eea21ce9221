"""Delay-aware proposals in Optuna, by a ``BoTorchSampler`` that knows the state of all trials.

It needs optuna-integration (``pip install botorch_calib[optuna]``). For each proposal the trials of
the study become a `FeedbackLedger`, from which a `DelayAwareProposer` chooses. Storages, retries
and heartbeats are Optuna's.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import product
from typing import Any, NamedTuple

try:
    from optuna_integration import BoTorchSampler
except ImportError as error:
    raise ImportError(
        "botorch_calib.integrations.optuna_delays needs Optuna: pip install botorch_calib[optuna]"
    ) from error
import numpy as np
import torch
from botorch.exceptions.errors import InputDataError, UnsupportedError
from botorch.models.model import Model
from botorch.utils.sampling import draw_sobol_samples
from optuna import Study
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from torch import Tensor

from botorch_calib.asynchronous.proposer import DelayAwareProposer, DelayStrategy, SearchSettings
from botorch_calib.calibration import Calibrator
from botorch_calib.integrations.optuna import fit_in_unit_cube
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.models import CalibratedModel
from botorch_calib.models.fit_to_ledger import Fit
from botorch_calib.models.matching_rows import ROUNDED, is_any_of

# One proposal at a time: threads share a sampler, each has to know what the one before was given,
# and the proposer sets torch's random state. Not an attribute, since a sampler is pickled.
_one_at_a_time = threading.RLock()

# The largest number of points of a space without continuous parameters that is searched as it is.
MOST_POINTS = 2048

# To Optuna infinity is a value; to a Gaussian process all is infinite whose square overflows.
INFINITE = 1e150


class _Look(NamedTuple):
    """The state of a study when a trial is asked for; Optuna's sampler hands over less."""

    ledger: FeedbackLedger  # in the unit cube of the encoding, to be maximised
    points: Tensor | None  # all points of the search space, ``n x d``, there, if they are few
    transform: _SearchSpaceTransform


class DelayAwareSampler(BoTorchSampler):
    """A sampler for many workers: trials that still run, and that failed, count in each proposal.

    It is for one objective without constraints. Trials that run are censored or hallucinated, as
    ``strategy`` says; the value of a pruned one never comes. The search keeps away from points that
    have failed: by an exception, because the heartbeat of their process stopped, or by an infinite
    value; and from trials that hang, until their value comes (see ``failures`` of `DelayStrategy`).
    If all parameters are integers, categories or have steps, and there are at most 2048 points, the
    search is among these, and a point that failed, was pruned or runs is asked again only if there
    is no other. Elsewhere a point that Optuna would round to that of an earlier trial gives way to
    a new one. A study that is loaded goes on as if it had not been interrupted.

    Which trials hang is told by the order in which trials began and ended: later, if clocks of
    machines differ by more than a trial takes. A trial whose process was killed hangs: tell the
    study that it failed, or give the storage heartbeats.

    Args:
        strategy: ``"hallucinate"``, ``"ucb"``, ``"ts"`` or a `DelayStrategy`.
        calibrator: Calibrates the Gaussian process, by a replay of the complete trials in the order
            in which they ended; each fit starts from a copy that has learned nothing.
        fit: Builds a fitted Gaussian process from ``X`` (``n x d``), scaled to the unit cube, and
            ``Y`` (``n x 1``), which is to be maximised. The default is a ``SingleTaskGP``, fitted
            by marginal likelihood.
        censor_value: The worst value that the objective can take, as a trial returns it; None for
            the worst one observed so far.
        num_restarts: Number of starting points of the gradient-based search.
        raw_samples: Number of points from which these are chosen.
        n_startup_trials: Number of trials, those that run included, that are drawn at random first.
        independent_sampler: Draws these, and parameters that are conditional.
        seed: Seed of all random numbers; processes that share a study need different ones.
        device: Where the model is, and the data that ``fit`` is given (default: the CPU).

    Raises:
        InputDataError: If a setting is unknown or out of its range.
        UnsupportedError: On a study with several objectives or with constraints.
    """

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
        if calibrator is not None and not isinstance(calibrator, Calibrator):
            raise InputDataError(f"`calibrator` must be a calibrator or None, got {calibrator!r}.")
        if fit is not None and not callable(fit):
            raise InputDataError(f"`fit` must be a function of `X` and `Y`, got {fit!r}.")
        if not isinstance(independent_sampler, BaseSampler | None):
            raise InputDataError(
                "`independent_sampler` must be a sampler of Optuna, such as RandomSampler(), got "
                f"{independent_sampler!r}."
            )
        self._strategy = strategy
        try:
            self._device = torch.device("cpu" if device is None else device)
        except (RuntimeError, TypeError) as error:
            raise InputDataError(
                f'`device` must be a device of torch, such as "cuda", got {device!r}.'
            ) from error
        self._fit = partial(
            _fitted,
            fit=fit_in_unit_cube if fit is None else fit,
            calibrator=calibrator,
            device=self._device,
        )
        self._censor_value = censor_value
        # Without a seed of its own Optuna's sampler draws at random: so does the proposer.
        base = _random_seed() if seed is None else seed
        self._search = SearchSettings(num_restarts, raw_samples, base)
        self._seeded_in: int | None = os.getpid()
        self._proposers: dict[int, DelayAwareProposer] = {}
        self._handed_out: dict[int, dict[str, Any]] = {}  # by number of trial
        self._proposer(1)  # so that a wrong setting is noticed now
        FeedbackLedger(1, censor_value=censor_value)
        # Optuna's own `device` stays the CPU: only the bounds that it moves there are used.
        super().__init__(
            candidates_func=self._candidate,
            n_startup_trials=n_startup_trials,
            consider_running_trials=True,
            independent_sampler=independent_sampler,
            seed=seed,
        )

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Parameters of the next trial, from Optuna."""
        if not search_space:
            return {}
        if len(study.directions) > 1:
            raise UnsupportedError(
                "DelayAwareSampler is for one objective. For several, "
                "BoTorchSampler(candidates_func=calibrated_candidates_func(), "
                "consider_running_trials=True) takes account of running trials."
            )
        with _one_at_a_time:
            self._look = self._look_at(study, search_space)
            parameters: dict[str, Any] = super().sample_relative(study, trial, search_space)
            self._handed_out[trial.number] = parameters
        return parameters

    def _look_at(self, study: Study, search_space: dict[str, BaseDistribution]) -> _Look:
        """The state of the trials that have all parameters of the search space."""
        # In one look, and not from Optuna's own, which follows: so no trial counts twice, and none
        # that ends in between is overlooked.
        transform = _SearchSpaceTransform(search_space)
        trials = [
            trial
            for trial in study.get_trials(deepcopy=False)
            if trial.state is not TrialState.WAITING
        ]
        # A trial's parameters are in the study when the objective asks for them, and not before.
        self._handed_out = {
            trial.number: self._handed_out[trial.number]
            for trial in trials
            if trial.state is TrialState.RUNNING
            and trial.number in self._handed_out
            and not search_space.keys() <= trial.params.keys()
        }
        value = self._censor_value
        sign = -1.0 if study.direction is StudyDirection.MINIMIZE else 1.0
        ledger = FeedbackLedger(
            len(transform.bounds),
            censor_value=None if value is None else sign * value,
            clock="seconds",
        )
        for trial, (start, end) in zip(trials, _places_in_time(trials), strict=True):
            parameters = self._handed_out.get(trial.number, trial.params)
            if search_space.keys() <= parameters.keys():
                (x,) = _encoded(transform, [parameters])
                _record(ledger, trial, x, sign, start, end)
        return _Look(ledger, _all_points(transform), transform)

    def reseed_rng(self) -> None:
        """Draw new seeds, once in each process and for each copy.

        Optuna calls this before each trial of ``n_jobs`` threads, which share this sampler: its
        numbers differ anyway, and a design goes on only as long as it keeps its seed.
        """
        with _one_at_a_time:
            super().reseed_rng()
            if self._seeded_in == os.getpid():
                return
            self._seeded_in = os.getpid()
            self._search = replace(self._search, seed=_random_seed())
            for proposer in self._proposers.values():
                proposer.search = self._search

    def __getstate__(self) -> dict[str, Any]:
        # A copy goes on with the same numbers, unless it is told to draw others.
        return {**self.__dict__, "_seeded_in": None}

    def _candidate(
        self,
        X: Tensor,
        Y: Tensor,
        constraints: Tensor | None,
        bounds: Tensor,
        X_running: Tensor | None,
    ) -> Tensor:
        """The next point, length ``d``, within ``bounds``, ``2 x d``; ``Y`` is maximised."""
        if constraints is not None:
            raise UnsupportedError(
                "DelayAwareSampler knows nothing of constraints: "
                "BoTorchSampler(candidates_func=calibrated_candidates_func(), "
                "consider_running_trials=True) takes account of running trials and of them."
            )
        ledger, points, transform = self._look
        proposer = self._proposer(ledger.dim)
        proposer.choices = None
        if points is not None:
            others = [trial.x for trial in ledger if trial.status is not TrialStatus.OBSERVED]
            proposer.choices = _without(points, others)
        point = proposer(ledger)
        if points is None and _rounds(transform):
            point = self._unless_repeated(point, proposer)
        return (bounds[0] + (bounds[1] - bounds[0]) * point).clamp(bounds[0], bounds[1])

    def _unless_repeated(self, point: Tensor, proposer: DelayAwareProposer) -> Tensor:
        """The point or, if Optuna would round it to that of an earlier trial, one that is new.

        It is chosen from a Sobol sample of rounded points, all in the unit cube.
        """
        ledger, _, transform = self._look
        known = [trial.x for trial in ledger]
        if _without(_rounded(transform, point.unsqueeze(0)), known) is not None:
            return point
        sample = draw_sobol_samples(
            proposer.bounds, n=self._search.raw_samples, q=1, seed=self._search.seed + len(ledger)
        )
        rounded = _rounded(transform, sample.squeeze(-2)).unique(dim=0)
        proposer.choices = _without(rounded, known)
        return point if proposer.choices is None else proposer(ledger)

    def _proposer(self, dim: int) -> DelayAwareProposer:
        """One for each number of encoded parameters, which changes with the search space."""
        if dim not in self._proposers:
            unit_cube = torch.tensor(
                [[0.0] * dim, [1.0] * dim], dtype=torch.double, device=self._device
            )
            self._proposers[dim] = DelayAwareProposer(
                unit_cube, self._strategy, self._fit, num_initial=0, search=self._search
            )
        return self._proposers[dim]


def _places_in_time(trials: Sequence[FrozenTrial]) -> list[tuple[int, int]]:
    """Places of the start and the end of each trial among all of these times.

    A ledger would hide times in the future of its own clock, so only the order counts. A trial that
    has not ended has the last place; one that ended before it began, by a clock that was set back,
    ends as it begins.
    """
    starts = [_seconds(trial.datetime_start, -math.inf) for trial in trials]
    ends = [_seconds(trial.datetime_complete, math.inf) for trial in trials]
    _, places = np.unique([starts, ends], return_inverse=True)
    first, last = places.reshape(2, -1)
    return list(zip(first.tolist(), np.maximum(first, last).tolist(), strict=True))


def _seconds(moment: datetime | None, otherwise: float) -> float:
    return otherwise if moment is None else moment.timestamp()


def _record(
    ledger: FeedbackLedger, trial: FrozenTrial, x: Any, sign: float, start: int, end: int
) -> None:
    """Record a trial at a point of length ``d``."""
    number = ledger.submit(x, time=start)
    if trial.state is TrialState.PRUNED:
        ledger.abandon(number, time=end)
    elif trial.state is TrialState.COMPLETE and trial.value is not None:
        if abs(trial.value) < INFINITE:
            ledger.observe(number, sign * trial.value, time=end)
        else:
            ledger.fail(number, "infinite value", time=end)
    elif trial.state is TrialState.FAIL:
        ledger.fail(number, time=end)


def _encoded(transform: _SearchSpaceTransform, points: Iterable[dict[str, Any]]) -> Tensor:
    """Parameters of points, encoded in the unit cube, ``n x d``."""
    low, high = transform.bounds.T
    rows = np.array([transform.transform(parameters) for parameters in points])
    return torch.from_numpy((rows - low) / (high - low))


def _all_points(transform: _SearchSpaceTransform) -> Tensor | None:
    """All points ``n x d`` of a space without continuous parameters; None if many.

    Between them the acquisition function may have a maximum whose rounding is always one and the
    same point.
    """
    space = transform._search_space
    values = [_all_values(distribution) for distribution in space.values()]
    if not 0 < math.prod(map(len, values)) <= MOST_POINTS:
        return None
    points = (dict(zip(space, each, strict=True)) for each in product(*values))
    return _encoded(transform, points)


def _rounds(transform: _SearchSpaceTransform) -> bool:
    """Whether a search space holds integers, categories or steps."""
    return any(
        not isinstance(each, FloatDistribution) or each.step is not None
        for each in transform._search_space.values()
    )


def _rounded(transform: _SearchSpaceTransform, points: Tensor) -> Tensor:
    """Points of the unit cube, ``n x d``, as Optuna rounds them."""
    low, high = transform.bounds.T
    rows = low + (high - low) * points.numpy()
    return _encoded(transform, map(transform.untransform, rows))


def _all_values(distribution: BaseDistribution) -> Sequence[Any]:
    """The values of a parameter, none if they are continuous or many."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    if distribution.step is None:
        return ()
    # Optuna sees to it that the greatest value is a whole number of steps above the least one.
    last = round((distribution.high - distribution.low) / distribution.step)
    if last >= MOST_POINTS:
        return ()
    return [distribution.low + i * distribution.step for i in range(last + 1)]


def _without(points: Tensor, excluded: Sequence[Tensor]) -> Tensor | None:
    """The points that are not excluded; None if none is left, for a search of the whole box."""
    if not excluded:
        return points
    is_free = ~is_any_of(points, torch.stack(list(excluded)), ROUNDED)
    return points[is_free] if bool(is_free.any()) else None


def _random_seed() -> int:
    return int(np.random.default_rng().integers(2**31))


def _fitted(
    X: Tensor, Y: Tensor, fit: Fit, calibrator: Calibrator | None, device: torch.device
) -> Model:
    """The Gaussian process, fitted and calibrated."""
    gp = fit(X.to(device), Y.to(device))
    return gp if calibrator is None else CalibratedModel.from_history(gp, calibrator.fresh())
