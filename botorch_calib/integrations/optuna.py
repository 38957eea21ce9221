"""Calibrated models in Optuna: a ``candidates_func`` for Optuna's ``BoTorchSampler``.

This package's samplers are in `optuna_delays` and `optuna_decisions`. All three modules need
optuna-integration (``pip install botorch_calib[optuna]``). For each trial, the ``candidates_func``
fits a Gaussian process to each outcome. The calibrator of the outcome replays the complete trials
in the order of their numbers, and an acquisition function of the calibrated models is maximised.
Nothing is kept between trials, so a loaded study continues as if it had not been interrupted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from itertools import product
from typing import Any

try:
    import optuna_integration  # noqa: F401, for its sampler
    from optuna._transform import _SearchSpaceTransform
    from optuna.distributions import _get_single_value
    from optuna.study._constrained_optimization import (
        _CONSTRAINTS_KEY,  # noqa: F401, for `optuna_decisions`
    )
    from optuna.trial import FrozenTrial, TrialState

    FrozenTrial.set_constraint  # noqa: B018, which Optuna has from version 5 on
except (ImportError, AttributeError) as error:
    raise ImportError(
        "botorch_calib.integrations.optuna needs Optuna 5, or a later version with the names that "
        f"it imports, and optuna-integration ({error}): pip install botorch_calib[optuna]"
    ) from error
import numpy as np
import torch
from botorch.acquisition import AcquisitionFunction
from botorch.acquisition.multi_objective import IdentityMCMultiOutputObjective
from botorch.acquisition.multi_objective.parego import qLogNParEGO
from botorch.acquisition.multi_objective.utils import get_default_partitioning_alpha
from botorch.exceptions.errors import InputDataError
from botorch.models.model import Model
from botorch.optim import optimize_acqf
from botorch.utils.multi_objective.hypervolume import infer_reference_point
from botorch.utils.multi_objective.pareto import is_non_dominated
from botorch.utils.sampling import draw_sobol_samples
from botorch.utils.transforms import normalize, unnormalize
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from torch import Tensor
from torch.nn.functional import one_hot

from botorch_calib import acquisition as ours
from botorch_calib._validation import check_count
from botorch_calib.asynchronous.designs import with_features
from botorch_calib.asynchronous.refits import fit_single_task_gp
from botorch_calib.calibration import Calibrator, LocalizedConformal
from botorch_calib.integrations import _stored as stored
from botorch_calib.models import CalibratedModel, CalibratedModelList
from botorch_calib.models.matching_rows import ROUNDED, is_any_of
from botorch_calib.optim.scaled_search import SEPARATE_STARTS

#: Computes the next point, ``1 x d``, from inputs, objectives and constraints (or None) of the
#: complete trials, the bounds ``2 x d``, and the inputs of running trials (or None).
CandidatesFunction = Callable[[Tensor, Tensor, Tensor | None, Tensor, Tensor | None], Tensor]

# A space without continuous parameters is searched completely if it has at most this many points. A
# larger space is searched as if it were continuous, and the result is rounded.
MOST_POINTS = 2048


def calibrated_candidates_func(
    calibrator: Calibrator | Sequence[Calibrator] | None = None,
    *,
    denoise: bool = True,
    residuals: str = "prequential",
    excess: str = "noise",
    fit: Callable[[Tensor, Tensor], Model] | None = None,
    num_restarts: int = 10,
    raw_samples: int = 256,
) -> CandidatesFunction:
    """Return a ``candidates_func`` with calibrated models for Optuna's ``BoTorchSampler``.

    The function maximises `LogCalibratedExpectedImprovement` or, under constraints,
    `LogCalibratedConstrainedExpectedImprovement` (`LogCalibratedProbabilityOfFeasibility` until a
    trial is feasible). For several objectives it maximises
    `qLogCalibratedNoisyExpectedHypervolumeImprovement` with a reference point inferred from the
    Pareto front. With five or more objectives and few trials, the approximation of the hypervolume
    may have no cells. The function then maximises BoTorch's ``qLogNParEGO``. Until two trials are
    complete, it draws the point uniformly.

    Args:
        calibrator: A calibrator for all outcomes, or a sequence with a calibrator for each
            objective and then for each constraint (default: ``LocalizedConformal(0.2)``). Each
            trial starts from an untrained copy of the calibrator.
        denoise: See `CalibratedModel`.
        residuals: See `CalibratedModel.from_history`.
        excess: See `CalibratedModel`.
        fit: A function that fits a Gaussian process with one output to ``X``, ``n x d``, in the
            unit cube, and ``Y``, ``n x 1`` (default: a ``SingleTaskGP``, by marginal likelihood).
        num_restarts: Number of starting points of the gradient-based search.
        raw_samples: Number of points from which the starting points are chosen.

    Returns:
        A ``candidates_func``, which can be pickled if ``fit`` can.

    Raises:
        InputDataError: If an argument is malformed. When called: if an outcome is infinite, or the
            number of calibrators differs from the number of outcomes.

    Example:
        >>> sampler = BoTorchSampler(candidates_func=calibrated_candidates_func())
        >>> study = optuna.create_study(sampler=sampler)
    """
    if calibrator is None:
        calibrator = LocalizedConformal(0.2)
    calibrators = tuple(calibrator) if isinstance(calibrator, Sequence) else (calibrator,)
    if not calibrators or not all(isinstance(item, Calibrator) for item in calibrators):
        raise InputDataError(
            "`calibrator` must be a calibrator for all outcomes, or a sequence of one for each, "
            f"got {calibrator!r}."
        )
    return partial(
        _candidate,
        calibrators=calibrators,
        fit=fit_single_task_gp if fit is None else fit,
        options=stored.settings_of(denoise, residuals, excess),
        num_restarts=check_count("num_restarts", num_restarts),
        raw_samples=check_count("raw_samples", raw_samples, least=num_restarts),
    )


def _candidate(
    train_x: Tensor,
    train_obj: Tensor,
    train_con: Tensor | None,
    bounds: Tensor,
    pending_x: Tensor | None,
    *,
    calibrators: tuple[Calibrator, ...],
    fit: Callable[[Tensor, Tensor], Model],
    options: Mapping[str, Any],
    num_restarts: int,
    raw_samples: int,
) -> Tensor:
    """Return the next point ``1 x d``, within ``bounds``, ``2 x d``."""
    constraints = train_obj[:, :0] if train_con is None else train_con
    for name, values in (("An objective", train_obj), ("A constraint", constraints)):
        # Optuna itself rejects NaN.
        if not (values.abs() < stored.INFINITE).all():
            raise InputDataError(
                f"{name} of a complete trial is infinite, or beyond {stored.INFINITE:g}, which no "
                "Gaussian process can be fitted to: return a smaller value, or prune such trials."
            )
    if len(train_x) < 2:
        # The sampler counts running trials as startup trials, so there may be no complete trial.
        point = torch.rand_like(bounds[:1])
        return unnormalize(point, bounds).clamp(bounds[0], bounds[1])
    X, pending = normalize(train_x, bounds), None
    if pending_x is not None and len(pending_x):
        pending = normalize(pending_x, bounds)
    outcomes = torch.cat([train_obj, constraints], dim=-1).split(1, dim=-1)
    if len(calibrators) == 1:
        calibrators *= len(outcomes)
    if len(calibrators) != len(outcomes):
        raise InputDataError(
            f"`calibrator` holds {len(calibrators)} calibrators, but the study has "
            f"{len(outcomes)} outcomes: {train_obj.shape[-1]} objectives and "
            f"{constraints.shape[-1]} constraints."
        )
    models = [
        CalibratedModel.from_history(fit(X, Y), calibrator.fresh(), **options)
        for Y, calibrator in zip(outcomes, calibrators, strict=True)
    ]
    point, _ = optimize_acqf(
        improvement(models, X, train_obj, constraints, pending),
        bounds=unit_cube(X),
        q=1,
        num_restarts=num_restarts,
        raw_samples=raw_samples,
        options=dict(SEPARATE_STARTS),
    )
    # Rounding may move the point out of the bounds.
    return unnormalize(point, bounds).clamp(bounds[0], bounds[1])


def improvement(
    models: Sequence[Model],
    X: Tensor,
    objectives: Tensor,
    constraints: Tensor,
    pending: Tensor | None,
) -> AcquisitionFunction:
    """Return the acquisition function for the next trial, given a model of each outcome.

    ``X``, ``n x d``, and ``pending``, ``m x d``, are in the unit cube. ``objectives`` and
    ``constraints`` hold the observed values, with ``n`` rows and a column for each outcome.
    ``models`` are in the same order, with the objectives first. Objectives are maximised. A
    constraint is met if its value is at most 0. ``constraints`` may have no columns.
    """
    feasible = (constraints <= 0.0).all(dim=-1)
    # If no trial is feasible, the reference point for several objectives is inferred from all
    # trials.
    values = objectives[feasible] if feasible.any() else objectives
    if values.shape[-1] > 1:
        return _hypervolume_improvement(CalibratedModelList(*models), X, values, pending)
    best = values.max()
    if len(models) == 1:
        return ours.LogCalibratedExpectedImprovement(models[0], best_f=best, X_pending=pending)
    model, limits = CalibratedModelList(*models), {i: (None, 0.0) for i in range(1, len(models))}
    if not feasible.any():
        return ours.LogCalibratedProbabilityOfFeasibility(model, limits, X_pending=pending)
    return ours.LogCalibratedConstrainedExpectedImprovement(
        model, best_f=best, objective_index=0, constraints=limits, X_pending=pending
    )


def _hypervolume_improvement(
    model: Model, X: Tensor, values: Tensor, pending: Tensor | None
) -> AcquisitionFunction:
    """Return the log noisy expected hypervolume improvement, or else ``qLogNParEGO``.

    ``qLogNParEGO`` is returned if the approximation of the hypervolume improvement has no cells.
    The reference point is inferred from the Pareto front of ``values``, ``n x m``. The first ``m``
    outcomes of the ``model`` are objectives, and its other outcomes are constraints.
    """
    num = values.shape[-1]
    outcomes = range(num, model.num_outputs)
    settings: dict[str, Any] = {
        "X_baseline": X,
        "objective": IdentityMCMultiOutputObjective(outcomes=list(range(num))),
        "constraints": [lambda samples, i=i: samples[..., i] for i in outcomes] or None,
        "X_pending": pending,
        "prune_baseline": True,
    }
    acqf = ours.qLogCalibratedNoisyExpectedHypervolumeImprovement(
        model,
        ref_point=infer_reference_point(values[is_non_dominated(values)]),
        alpha=get_default_partitioning_alpha(num),
        **settings,
    )
    if acqf.get_buffer("cell_lower_bounds").shape[-2]:
        return acqf
    # With more than four objectives, the partitioning into cells is approximate. With few trials
    # there may be no cells, and then the hypervolume improvement has no value to maximise.
    return qLogNParEGO(model, cache_root=False, **settings)


class SearchSpace:
    """Encodes Optuna's parameters, by name, as points of the unit cube; categories are one-hot.

    ``distributions`` maps the name of each parameter to its Optuna distribution. ``held`` maps the
    names of fixed parameters to their values, as Optuna passes them to an objective function. A
    fixed value may be outside of the distribution's range, and its encoding outside of the cube.
    """

    def __init__(
        self, distributions: dict[str, BaseDistribution], held: Mapping[str, Any] | None = None
    ) -> None:
        self.distributions = distributions
        self.held = {**(held or {})}
        self._transform = _SearchSpaceTransform(distributions, transform_0_1=True)

    @classmethod
    def of_trials(
        cls, trials: Sequence[FrozenTrial], present: Mapping[str, BaseDistribution]
    ) -> SearchSpace | None:
        """Return the space of the parameters that a sampler chooses; None without any parameter.

        A parameter belongs to the space if the first complete trial with the parameter and all
        later complete trials have it. The space has the parameter's range in ``present``, which
        maps names to distributions, or else its latest range in ``trials``. A parameter whose range
        has become a single value is held at this value.
        """
        complete = [t for t in trials if t.state is TrialState.COMPLETE]
        several = [t.distributions.keys() for t in complete if t.distributions]
        names, absent = {*several[-1]} if several else set(), set[str]()
        for others in reversed(several):
            names -= absent & others  # conditional parameters, which some trials lack
            absent |= names - others
        latest = [*(t.distributions for t in trials), present]
        last = {name: own for each in latest for name, own in each.items()}
        ranges = {n: own for each in latest for n, own in each.items() if not own.single()}
        distributions = {name: ranges[name] for name in sorted(names & ranges.keys())}
        held = {n: _get_single_value(last[n]) for n in distributions if last[n].single()}
        return cls(distributions, held) if distributions else None

    def holding(self, values: Mapping[str, Any]) -> SearchSpace:
        """Return the space with the parameters in ``values`` held, too.

        Names that the space does not have, and categories that are not among the choices, are
        ignored.
        """
        held = dict(self.held)
        for name in self.distributions.keys() & values.keys():
            own = self.distributions[name]
            with suppress(ValueError):  # an unknown choice, at which Optuna will end the trial
                held[name] = own.to_external_repr(own.to_internal_repr(values[name]))
        return SearchSpace(self.distributions, held)

    @property
    def is_held(self) -> bool:
        """Whether all parameters are held."""
        return self.held.keys() == self.distributions.keys()

    @property
    def dim(self) -> int:
        """Number ``d`` of columns in the encoding."""
        return len(self._transform.bounds)

    def encoded(self, points: Iterable[Mapping[str, Any]]) -> Tensor:
        """Encode parameters as points ``n x d``; raise ``ValueError`` if a category is unknown."""
        rows = [
            self._transform.transform({name: values[name] for name in self.distributions})
            for values in points
        ]
        return torch.from_numpy(np.array(rows))

    def parameters(self, point: Tensor) -> dict[str, Any]:
        """Return the parameters, by name, at a point of length ``d``.

        Held parameters have their held values. Parameters that are not continuous are rounded.
        """
        return {**self._transform.untransform(point.clamp(0.0, 1.0).numpy()), **self.held}

    def rounded(self, points: Tensor) -> Tensor:
        """Round points ``n x d`` as Optuna does before it runs a trial, and insert held values."""
        X = points.clamp(0.0, 1.0)
        bounds = torch.from_numpy(self._transform._raw_bounds).to(X)
        for name, columns in self._columns.items():
            own, (low, high) = self.distributions[name], bounds[columns[0]]
            if isinstance(own, CategoricalDistribution):
                X[:, columns] = one_hot(X[:, columns].argmax(dim=-1), len(columns)).to(X)
            elif isinstance(own, IntDistribution | FloatDistribution) and own.step is not None:
                raw = low + X[:, columns] * (high - low)
                raw = raw.exp() if own.log else raw
                steps = ((raw - own.low) / own.step).round()
                raw = (own.low + own.step * steps).clamp(own.low, own.high)
                X[:, columns] = ((raw.log() if own.log else raw) - low) / (high - low)
        return with_features(X, self.fixed)

    @cached_property
    def fixed(self) -> dict[int, float]:
        """The encoded values of the held parameters, by column."""
        center = torch.full((self.dim,), 0.5, dtype=torch.double)
        point = self.encoded([self.parameters(center)])[0].tolist()
        return {i: point[i] for name in self.held for i in self._columns[name]}

    @property
    def _columns(self) -> dict[str, list[int]]:
        """The columns of each parameter, by name."""
        columns = [each.tolist() for each in self._transform.column_to_encoded_columns]
        return dict(zip(self.distributions, columns, strict=True))

    @property
    def is_rounded(self) -> bool:
        """Whether any parameter is an integer, a category or a float with a step size."""
        several = self.distributions.values()
        return any(not isinstance(one, FloatDistribution) or one.step for one in several)

    @cached_property
    def points(self) -> Tensor | None:
        """All points ``n x d``; None if a parameter that is not held is continuous.

        The result is also None if there are more than `MOST_POINTS` points. Listed points are
        compared one by one, since after a continuous search, rounding could move different maxima
        to the same point.
        """
        values = [
            [self.held[name]] if name in self.held else _values(own)
            for name, own in self.distributions.items()
        ]
        if not 0 < math.prod(map(len, values)) <= MOST_POINTS:
            return None
        every = product(*values)
        return self.encoded(dict(zip(self.distributions, each, strict=True)) for each in every)

    def sample(self, num: int, seed: int) -> Tensor:
        """Draw points ``num x d`` of a scrambled Sobol sequence, then round them as Optuna does."""
        cube = unit_cube(torch.empty(1, self.dim, dtype=torch.double))
        return self.rounded(draw_sobol_samples(cube, n=num, q=1, seed=seed).squeeze(-2))


def unit_cube(X: Tensor) -> Tensor:
    """Return the bounds ``2 x d`` of the unit cube, for inputs ``n x d``."""
    return torch.stack([torch.zeros_like(X[0]), torch.ones_like(X[0])])


def without(points: Tensor, excluded: Tensor) -> Tensor | None:
    """Return the points ``n x d`` without those that equal any of ``excluded``, ``m x d``.

    Points are equal if they differ only by rounding. The result is None if no point remains.
    """
    left = points[~is_any_of(points, excluded, ROUNDED)]
    return left if len(left) else None


def _values(distribution: BaseDistribution) -> Sequence[Any]:
    """Return all values of a parameter; empty if continuous, or if more than `MOST_POINTS`."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    if distribution.step is None:
        return ()
    # In Optuna the largest value is always a whole number of steps above the smallest value, so
    # this rounding only removes floating-point errors.
    last = round((distribution.high - distribution.low) / distribution.step)
    if last >= MOST_POINTS:
        return ()
    return [distribution.low + i * distribution.step for i in range(last + 1)]
