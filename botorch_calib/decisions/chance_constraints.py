"""`ChanceConstraint`: an outcome within its limits with a stated probability, kept true.

A point is *certified* if the outcome lies within its limits with probability ``level`` at least.
The quantiles that decide are learned from the rounds in which they were relied on, so the number of
violations is bounded whatever the model, the rule by which points are chosen and the environment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Self

import torch
from botorch.exceptions.errors import (
    BotorchTensorDimensionError,
    InputDataError,
    UnsupportedError,
)
from botorch.models.model import Model, ModelList
from torch import Tensor

from botorch_calib._validation import (
    check_count,
    check_limit,
    check_nonnegative,
    check_open_unit,
    check_precision,
    check_tensor,
)
from botorch_calib.calibration import Calibrator, OnlineQuantileTracker, QuantileRecalibrator
from botorch_calib.decisions.violation_account import (
    INTEGRAL_GAIN,
    TrackerStart,
    TrackerState,
    ViolationAccount,
)
from botorch_calib.models import CalibratedModel
from botorch_calib.models.inspection import (
    observed_process,
    raw_train_inputs,
    with_task_feature,
)
from botorch_calib.models.requirements import check_fits, check_observations

#: Step size of the tracker that `ChanceConstraint.from_history` makes.
STEP_SIZE = 0.05
# What BoTorch lets a constraint be violated by, and what that stands for, in standard deviations.
_TOLERANCE, _ROOM = 1e-8, 1e-6


class _Side(NamedTuple):
    """One of the limits, with the level of the quantile that decides about it."""

    level: float
    limit: float
    sign: float  # 1 at an upper limit, -1 at a lower one


class ChanceConstraint:
    r"""``P(lower <= y <= upper) >= level`` for an outcome ``y``, an observation with its noise.

    The margin at ``x`` is the distance from the outcome's ``level``-quantile, as the calibrator has
    learned it, up to the upper limit (or from the lower limit up to its ``1 - level``-quantile): at
    least 0 where the point is certified. Under both limits each side is given half of the
    probability, ``1 - (1 - level) / 2``, and the margin is the smaller of the two.

    **Guarantee.** For *any* model, rule of choice and environment, even one that sees the quantiles
    before it answers: of the first ``T`` certified rounds at most
    ``violation_bound(T) = (1 - level) T + (1 + eta) / eta`` violate a limit (one limit, one point a
    round, constant step ``eta``, no localization).

    `ViolationAccount` has the proof. Several points in a round, localized thresholds and shrinking
    steps have other bounds, see `violation_bound`. From the fourth round in a row without a
    certified point on, some of these rounds teach as well (if there is no bound to keep, one point
    of each). Misses that learning has cost are made up for, so that
    `OnlineQuantileTracker.coverage_bound` is no bound on this tracker's misses.

    The calibrator must learn from this constraint alone. The proof leaves out how the constant is
    rounded: in single precision that may come to 1e-6 of a violation in each round.

    The guarantee is on the outcome. There is none for the noise-free value behind it, nor for
    points that were not chosen.

    Args:
        model: A `CalibratedModel` with ``denoise=False``. Any calibrator gives margins; the bound
            needs a `QuantileRecalibrator` with the levels of `tracked_levels`, which `from_history`
            makes.
        upper: Upper limit of the outcome, in its units, or None.
        lower: Lower limit of the outcome, in its units, or None.
        level: Probability, in (0, 1), with which an outcome shall be within the limits.
        integral_gain: How fast misses in excess, or in want, of the stated share are made up for;
            0 leaves all to the tracker. Without effect where there is no bound, and slow at extreme
            levels: at 0.99 one miss too many is made up for in about 200 rounds.

    Raises:
        InputDataError: If an argument is malformed, or there is no limit.
        UnsupportedError: If ``model`` is not a `CalibratedModel`, is one of the objective
            (``denoise=True``) or a batch of models.
    """

    def __init__(
        self,
        model: CalibratedModel,
        upper: float | None = None,
        lower: float | None = None,
        level: float = 0.9,
        integral_gain: float = INTEGRAL_GAIN,
    ) -> None:
        self.model = _checked_model(model)
        self.upper = check_limit("upper", upper)
        self.lower = check_limit("lower", lower)
        self.level = check_open_unit("level", level)
        self.integral_gain = check_nonnegative("integral_gain", integral_gain)
        if self.upper is None and self.lower is None:
            raise InputDataError("Give `upper`, `lower` or both: there is nothing to constrain.")
        if self.upper is not None and self.lower is not None and not self.lower < self.upper:
            raise InputDataError(
                f"`lower` must be less than `upper`, got {self.lower} and {self.upper}."
            )
        signs = [side.sign for side in self._sides]
        self._account = ViolationAccount((1.0 - self.level) / len(signs), signs, self._start())

    @classmethod
    def from_history(
        cls,
        model: Model,
        upper: float | None = None,
        lower: float | None = None,
        level: float = 0.9,
        num_initial: int = 0,
        calibrator: Calibrator | None = None,
        integral_gain: float = INTEGRAL_GAIN,
    ) -> Self:
        """A constraint whose quantiles start from the residuals of a fitted Gaussian process.

        Args:
            model: A fitted exact Gaussian process of the constrained outcome, see
                `CalibratedModel.from_history`. With only a handful of data give its outcome a known
                scale rather than ``Standardize`` it: two values that happen to be close would make
                everything look certain.
            upper: See the class, like the next two.
            lower: Lower limit.
            level: Probability.
            num_initial: Number of initial observations (the design) to skip. With a wrong model the
                first ones may raise the threshold so far that little is certified for dozens of
                rounds. Skipping them all starts from the model's own quantile, which certifies more
                in the first rounds, and violates more often.
            calibrator: Copied (default: a `QuantileRecalibrator` of the `tracked_levels` with
                steps of 0.05). The bound of a localized one needs a ``regularization``.
            integral_gain: See the class.

        Raises:
            InputDataError: If an argument is malformed.
            UnsupportedError: If ``model`` is not an exact Gaussian process with one output.
        """
        if calibrator is None:
            levels = cls.tracked_levels(upper, lower, check_open_unit("level", level))
            calibrator = QuantileRecalibrator(levels, step_size=STEP_SIZE)
        calibrated = CalibratedModel.from_history(
            _gaussian(model), calibrator, num_initial, denoise=False
        )
        return cls(calibrated, upper, lower, level, integral_gain)

    @staticmethod
    def tracked_levels(upper: float | None, lower: float | None, level: float) -> list[float]:
        """Levels of the quantiles that decide about these limits, in increasing order."""
        if upper is None or lower is None:
            return [1.0 - level] if upper is None else [level]
        return [0.5 * (1.0 - level), 0.5 * (1.0 + level)]

    @property
    def calibrator(self) -> Calibrator:
        """The calibrator, which goes on with the next round's model, see `with_model`."""
        return self.model.calibrator

    def with_model(self, model: Model) -> Self:
        """The same constraint, with all it has learned and counted, on a refitted model.

        Args:
            model: A Gaussian process of the same outcome, fitted to all data so far. Observe new
                data with the old model first, since its quantiles decided about them.
        """
        calibrated = CalibratedModel(_gaussian(model), self.calibrator, denoise=False)
        twin = type(self)(calibrated, self.upper, self.lower, self.level, self.integral_gain)
        twin._account = self._account
        return twin

    def margin(self, X: Tensor) -> Tensor:
        """How far the deciding quantile is inside its limit; at least 0 where certified.

        Differentiable in ``X``. A quantile that has reached the calibrator's ``max_width`` bounds
        nothing: its margin is at most minus one standard deviation.

        Args:
            X: Points ``b x 1 x d``, in the precision of the model.

        Returns:
            Margins of shape ``b``, in units of the outcome.
        """
        if check_tensor("X", X).dim() < 2 or X.shape[-2] != 1:
            raise BotorchTensorDimensionError(
                f"`X` must have shape b x 1 x d, one point at a time, got {tuple(X.shape)}."
            )
        self.check_points("X", X)
        margins, _ = self._margins_and_quantiles(X)
        return margins

    def _margins_and_quantiles(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Margins ``b`` and deciding quantiles ``b x s`` of points ``b x 1 x d``."""
        mean, deviation = self.model.observation_moments(X)
        X = with_task_feature(observed_process(self.model), X)
        inputs = self.model.transform_inputs(X)
        margins, quantiles = [], []
        for side in self._sides:
            score = self.calibrator.quantile(inputs, side.level)
            quantile = mean + deviation * score
            margin = side.sign * (side.limit - quantile)
            at_cap = side.sign * score >= self.calibrator.max_width
            margins.append(torch.where(at_cap, torch.minimum(margin, -deviation), margin))
            quantiles.append(quantile)
        margin = torch.stack(margins).amin(dim=0).squeeze(-1).squeeze(-1)
        return margin, torch.cat(quantiles, dim=-1).squeeze(-2)

    def check_points(self, name: str, X: Tensor) -> None:
        """Raise unless points ``... x d`` have the width and the precision of the model's inputs.

        The column of the output task of a multi-task model may be left out. Errors call the points
        ``name``.
        """
        observed = observed_process(self.model)
        check_fits(observed, with_task_feature(observed, X), name)

    @property
    def _sides(self) -> list[_Side]:
        levels = self.tracked_levels(self.upper, self.lower, self.level)
        limits = [(limit, sign) for limit, sign in ((self.lower, -1.0), (self.upper, 1.0))]
        given = [(limit, sign) for limit, sign in limits if limit is not None]
        return [_Side(level, *side) for level, side in zip(levels, given, strict=True)]

    @torch.no_grad()
    def certified(self, X: Tensor) -> Tensor:
        """Whether each point of ``b x 1 x d`` is certified, ``b``."""
        return self.margin(X) >= 0.0

    @torch.no_grad()
    def typical_deviation(self) -> Tensor:
        """Standard deviation of an outcome, the mean over the training inputs (1 without any).

        A unit for comparing outcomes. It is constant, so margins keep their shape.
        """
        inputs = raw_train_inputs(observed_process(self.model))
        if inputs is None or inputs.shape[-2] == 0:
            return torch.ones(())
        _, deviation = self.model.observation_moments(inputs.unsqueeze(-2))
        return deviation.mean()

    def nonlinear_inequality_constraint(self) -> tuple[Callable[[Tensor], Tensor], bool]:
        """The margin as an element of ``optimize_acqf``'s ``nonlinear_inequality_constraints``.

        That function needs certified ``batch_initial_conditions``, and ``options`` such as
        ``{"batch_limit": 1, "maxiter": 100, "ftol": 1e-9}``. By default SLSQP may end 1e-6 outside,
        where BoTorch raises from 1e-8 on. What BoTorch accepts is certified: the function is the
        margin, in standard deviations of the outcome and less 1e-6 of them, times 0.01, so that
        1e-8 outside of it is the border. `optimize_chance_constrained` does all of it.

        Returns:
            A function of a point ``d``, and True, as it is a constraint on single points.
        """
        unit = self.typical_deviation()

        def clear(x: Tensor) -> Tensor:
            room = max(_ROOM, clearance(x.dtype))
            return (self.margin(x.reshape(1, 1, -1)).squeeze(0) / unit - room) * (_TOLERANCE / room)

        return clear, True

    def violated(self, Y: Tensor) -> Tensor:
        """Whether outcomes are outside their limits, of the shape of ``Y``."""
        return self._violated_sides(Y).any(dim=-1)

    def _violated_sides(self, Y: Tensor) -> Tensor:
        """Whether outcomes of any shape violate each of the ``s`` limits, ``... x s``."""
        limits = Y.new_tensor([side.limit for side in self._sides])
        return self._outside(Y.unsqueeze(-1), limits)

    def _outside(self, Y: Tensor, ends: Tensor) -> Tensor:
        """Whether outcomes ``... x 1`` are beyond each of the ends ``... x s`` of the sides."""
        signs = Y.new_tensor([side.sign for side in self._sides])
        return signs * Y > signs * ends

    @torch.no_grad()
    def observe(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, condition: bool = True
    ) -> None:
        """Learn from the certified rows and condition the model on all of them.

        The present quantiles tell which rows are certified, so points that were chosen before
        others were observed may count as uncertified by now.

        Args:
            X: Points ``n x d``.
            Y: Their outcomes ``n x 1``, in the units of the outcome.
            Yvar: Their noise variances ``n x 1``, for a model with given noise (default: the mean
                of its training noise). They condition the model and judge no outcome.
            condition: Whether to also condition the model on them.

        Raises:
            InputDataError, BotorchTensorDimensionError: If an argument is malformed.
            UnsupportedError: If the model cannot be conditioned, or the calibrator is mixed
                (``lengthscale="auto"``) and several of the rows are certified.
        """
        if check_tensor("X", X).dim() != 2:
            raise BotorchTensorDimensionError(f"`X` must have shape n x d, got {tuple(X.shape)}.")
        self.check_points("X", X)
        observed = observed_process(self.model)
        check_observations(observed, with_task_feature(observed, X), Y, Yvar)
        check_precision("Y", Y, X.dtype)
        margins, quantiles = self._margins_and_quantiles(X.unsqueeze(-2))
        certified = margins >= 0.0
        violated = self._violated_sides(Y.squeeze(-1)) & certified.unsqueeze(-1)
        missed = self._outside(Y, quantiles) & certified.unsqueeze(-1) | violated
        num_certified = int(certified.sum())
        teaching = certified
        if not num_certified:
            teaching = torch.arange(len(X), device=X.device) < self._num_idle_teachers(len(X))
        self.model.observe(
            X, Y, Yvar, condition=condition, learn_from=teaching, beyond=self._beyond(violated)
        )
        if not len(X):
            return
        num_taught = int(teaching.sum())
        self._account.record(violated, missed, num_certified, num_taught)
        tracker = self._tracker
        if self._account.start is None or tracker is None:
            return
        if num_certified:
            constants = tracker.constants.clone()
            constants[self._indices] = self._account.balanced(
                constants[self._indices], tracker.next_step, self.integral_gain
            )
            tracker.constants = constants
        else:
            # Steps are numbered by the certified points, see the proof.
            tracker.step_count = tracker.step_count - num_taught

    def _num_idle_teachers(self, num_rows: int) -> int:
        """How many of ``num_rows`` points, of which none is certified, teach."""
        tracker = self._tracker
        if self._account.start is None or tracker is None:
            return self._account.num_idle_teachers(num_rows)
        # With shrinking steps one at most, so that the step never grows, see the proof.
        num_rows = min(num_rows, 1) if tracker.step_decay > 0.0 else num_rows
        state = TrackerState(
            tracker.constants[self._indices].tolist(), tracker.next_step, tracker.step_size
        )
        return self._account.num_idle_teachers(num_rows, state)

    def _beyond(self, violated: Tensor) -> Tensor | None:
        """The side on which violations ``n x s`` count, whatever the last digit says.

        In exact arithmetic they are beyond the quantile that certified. Learners without a bound
        may use by how far, so these are told nothing.
        """
        if self._account.start is None:
            return None
        signs = torch.tensor([side.sign for side in self._sides], device=violated.device)
        return (violated * signs).sum(dim=-1)

    @property
    def num_rounds(self) -> int:
        """Number of rounds, that is of calls of `observe`."""
        return self._account.counts.num_rounds

    @property
    def num_observed(self) -> int:
        """Number of points observed."""
        return self._account.counts.num_observed

    @property
    def num_certified(self) -> int:
        """Number of points observed that were certified."""
        return self._account.counts.num_certified

    @property
    def num_violations(self) -> int:
        """Number of certified points whose outcome violated a limit."""
        return self._account.counts.num_violations

    def state_dict(self) -> dict[str, Any]:
        """What has been learned and counted, for ``torch.save``, without the model.

        Settings are there only to be compared.
        """
        return {
            "settings": self._settings(),
            "record": self._account.state_dict(),
            "calibrator": deepcopy(self.calibrator.state_dict()),
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from where another constraint was saved; the bound then holds of both together.

        Args:
            state_dict: Of a constraint with the same limits, level and calibrator.

        Raises:
            InputDataError: If it is of another kind of constraint.
            RuntimeError: If the calibrator's part does not fit.
        """
        if (theirs := state_dict["settings"]) != (own := self._settings()):
            raise InputDataError(f"`state_dict` is of a constraint with {theirs}, not {own}.")
        self.calibrator.load_state_dict(state_dict["calibrator"])
        self._account.load_state_dict(state_dict["record"])

    def _settings(self) -> dict[str, Any]:
        """The settings that the counts and the bound depend on."""
        settings = {"lower": self.lower, "upper": self.upper, "level": self.level}
        names = ("step_size", "step_decay", "scale", "lengthscale", "regularization")
        tracker = self._tracker
        return settings | {name: getattr(tracker, name) for name in names if tracker is not None}

    def violation_bound(self, num_certified: int, batch_size: int = 1) -> float:
        """Largest number of violations among the first ``num_certified`` certified points.

        Under two limits it is the sum of what either side allows.

        Args:
            num_certified: Number of certified points, from the constraint's first observation on.
            batch_size: Largest number of points in one call of `observe`, if larger than so far.

        Raises:
            InputDataError: If a number is not a positive integer.
            UnsupportedError: If the calibrator does not track the deciding quantiles online, is
                localized without forgetting, or has also learned from elsewhere.
        """
        check_count("num_certified", num_certified)
        check_count("batch_size", batch_size)
        start, tracker = self._account.start, self._tracker
        if start is None or tracker is None:
            raise self._without_bound()
        if tracker.num_updates != start.num_updates + self.num_certified:
            raise UnsupportedError(
                "The calibrator has also learned from elsewhere, so nothing bounds this "
                "constraint's violations: give each constraint a calibrator of its own, and call "
                "the constraint's `observe`, not that of its model."
            )
        last = tracker.step_at(start.num_updates + num_certified)
        return self._account.bound(num_certified, last, tracker.step_size, batch_size)

    def _start(self) -> TrackerStart | None:
        """The tracker's state that the bound rests on; None if there is no bound."""
        tracker, indices = self._tracker, self._indices
        if tracker is None or (tracker.localized and tracker.regularization == 0.0):
            return None
        lowest, highest = (ends[indices].tolist() for ends in tracker.reach())
        return TrackerStart(tracker.num_updates, lowest, highest)

    @property
    def _tracker(self) -> OnlineQuantileTracker | None:
        """The learner of the deciding quantiles, if it is one with a bound."""
        tracker = getattr(self.calibrator, "tracker", None)
        follows = isinstance(tracker, OnlineQuantileTracker) and self._indices
        return tracker if follows else None

    @property
    def _indices(self) -> list[int]:
        """Positions of the deciding levels in the tracker; none where one is missing."""
        if not isinstance(self.calibrator, QuantileRecalibrator):
            return []
        found = [self.calibrator.index_of(side.level) for side in self._sides]
        return [index for index in found if index is not None] if None not in found else []

    def _without_bound(self) -> UnsupportedError:
        name, tracker = type(self.calibrator).__name__, self._tracker
        if tracker is not None:
            return UnsupportedError(
                f"This {name} is localized without forgetting, so its thresholds have no bound "
                "that does not grow with time: give it a `regularization` such as 0.01."
            )
        return UnsupportedError(
            f"{name} has no bound on the violations at level {self.level}: use "
            "`ChanceConstraint.from_history`, or a QuantileRecalibrator with the levels "
            f"{[side.level for side in self._sides]} and numbers as settings."
        )

    def __repr__(self) -> str:
        limits = [
            f"{name}={value:g}"
            for name, value in (("lower", self.lower), ("upper", self.upper))
            if value is not None
        ]
        return (
            f"{type(self).__name__}({', '.join(limits)}, level={self.level:g}, "
            f"certified={self.num_certified} of {self.num_observed}, "
            f"violations={self.num_violations})"
        )


def clearance(dtype: torch.dtype) -> float:
    """The margin, in standard deviations, from which on a search takes a point for certified.

    A posterior changes in the last digits with the other points it is evaluated at. A margin within
    these of 0 might be negative the next time.
    """
    return float(torch.finfo(dtype).eps) ** 0.5


def joint_level(level: float, num_constraints: int) -> float:
    """Level of each of several constraints that hold together with probability ``level``.

    By Bonferroni's inequality, ``1 - (1 - level) / num_constraints``, whatever the outcomes'
    dependence; it is cautious where they fail together.

    Args:
        level: Joint level, in (0, 1).
        num_constraints: Number of constraints.
    """
    num = check_count("num_constraints", num_constraints)
    return 1.0 - (1.0 - check_open_unit("level", level)) / num


def chance_constraints_of(
    constraints: ChanceConstraint | Iterable[ChanceConstraint],
) -> list[ChanceConstraint]:
    """Several constraints as a list, for which a single one may stand."""
    is_single = isinstance(constraints, ChanceConstraint) or not isinstance(constraints, Iterable)
    several: list[Any] = [constraints] if is_single else [*constraints]  # type: ignore[misc]
    if not several:
        raise InputDataError("`constraints` must hold at least one ChanceConstraint.")
    for constraint in several:
        if not isinstance(constraint, ChanceConstraint):
            raise InputDataError(
                "`constraints` must hold instances of ChanceConstraint alone, got "
                f"{type(constraint).__name__}."
            )
    return several


def joint_chance_constraints(
    models: Sequence[Model] | Model,
    limits: Sequence[tuple[float | None, float | None]],
    level: float = 0.9,
    num_initial: int = 0,
) -> list[ChanceConstraint]:
    """Constraints on several outcomes that hold together with probability ``level``.

    Each is stated at `joint_level`, with a bound on its own violations; the bounds add up.

    Args:
        models: A fitted Gaussian process for each outcome, on the same inputs, or a ``ModelList``
            of them. A single one stands for a list of one.
        limits: ``(lower, upper)`` of each outcome, None for no limit.
        level: Joint level, in (0, 1).
        num_initial: Number of initial observations (the design) to skip.

    Raises:
        InputDataError: If ``models`` and ``limits`` differ in number, or one is malformed.
    """
    if isinstance(models, ModelList):
        several = [*models.models]
    else:
        several = [models] if isinstance(models, Model) else [*models]
    if not several or len(several) != len(limits):
        raise InputDataError(
            f"`models` and `limits` must have the same positive length, got {len(several)} and "
            f"{len(limits)}."
        )
    if not all(isinstance(pair, Sequence) and len(pair) == 2 for pair in limits):
        raise InputDataError("`limits` must hold a pair `(lower, upper)` for each model.")
    each = joint_level(level, len(several))
    return [
        ChanceConstraint.from_history(model, upper, lower, each, num_initial)
        for model, (lower, upper) in zip(several, limits, strict=True)
    ]


def _gaussian(model: Model) -> Model:
    """``model``, unless it is calibrated already."""
    if any(isinstance(part, CalibratedModel) for part in model.modules()):
        raise UnsupportedError(
            f"`model` must be a Gaussian process, and this {type(model).__name__} is calibrated "
            "already: give the model inside it, since the constraint keeps its own calibrator."
        )
    return model


def _checked_model(model: object) -> CalibratedModel:
    if not isinstance(model, CalibratedModel):
        raise UnsupportedError(
            f"`model` must be a CalibratedModel, got {type(model).__name__}: wrap a Gaussian "
            "process by `ChanceConstraint.from_history(gp, ...)`."
        )
    if model.denoise:
        raise UnsupportedError(
            "`model` is denoised: it describes the objective behind the noise, for which no "
            "probability is guaranteed, while limits are met or not by outcomes. Make it with "
            "`denoise=False`."
        )
    if model.batch_shape:
        raise UnsupportedError(
            f"`model` must not be a batch of models, got batch shape {tuple(model.batch_shape)}."
        )
    return model
