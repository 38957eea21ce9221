"""`ChanceConstraint`: keeps an outcome within its limits with a stated probability."""

from __future__ import annotations

import copy
import math
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import compress
from statistics import NormalDist
from typing import Any, Self

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import Model
from torch import Tensor

from botorch_calib._validation import (
    check_flag,
    check_inputs,
    check_model,
    check_open_unit,
    check_positive,
    check_precision,
    check_tensor,
    numbers_of,
)
from botorch_calib.calibration import Calibrator
from botorch_calib.decisions import widening
from botorch_calib.decisions.budget import LEAST_EXCESS, SIZE
from botorch_calib.decisions.matching_decisions import DecidedPoints, Match, matches
from botorch_calib.decisions.rows import (
    Data,
    DecisionAccount,
    Limits,
    Row,
    Side,
    have_decided,
    in_turn,
    is_outside,
    leave_traces,
)
from botorch_calib.decisions.worst_contexts import WorstContexts
from botorch_calib.exceptions import warn
from botorch_calib.models import CalibratedModel
from botorch_calib.models.beyond import checked_beyond, stand_ins
from botorch_calib.models.cholesky_factor import ModelState
from botorch_calib.models.conditioning import with_observations
from botorch_calib.models.known_data import KnownData, take_together
from botorch_calib.models.outcome_transforms import train_data
from botorch_calib.models.predict import predict
from botorch_calib.models.process import (
    batch_of_models,
    check_fits,
    checked_observations,
    in_output_task,
    observed_process,
    raw_train_inputs,
    sole_member,
    training_points,
    with_task_feature,
)
from botorch_calib.models.requirements import check_process, check_same_width, check_sole_outcome
from botorch_calib.models.surrogate import Surrogate
from botorch_calib.optim.feasible_search import clearance
from botorch_calib.posteriors import CalibratedPosterior
from botorch_calib.posteriors.prediction import Spread
from botorch_calib.robust import AmbiguitySet, ContextDistribution

#: The name of the outcome if the model of a constraint is given without a name.
SOLE = "y"
# BoTorch accepts points that violate a constraint by up to `_TOLERANCE`. So the constraint function
# is the margin, shifted by `_ROOM` standard deviations and scaled, so that the accepted points have
# margins >= 0.
_TOLERANCE, _ROOM = 1e-8, 1e-6
_MOST_IGNORED = 100  # number of ignored outcomes, the latest, that are kept
_GREATEST = 1e300  # replaces an infinite quantile in a row
# Normal scores of quantiles of non-Gaussian predictions are clamped to plus or minus `_FARTHEST`,
# since the probabilities of larger scores underflow.
_FARTHEST = 37.0


class ChanceConstraint(DecisionAccount):
    r"""Chance constraint ``P(lower <= y <= upper) >= level`` on an outcome ``y`` with its noise.

    A point is *certified* if its margin is at least 0. The margin at ``x`` is the distance from a
    quantile of the outcome, the *deciding quantile*, up to the upper limit, or from the lower limit
    up to a deciding quantile. For a single upper limit and the model's predictive distribution
    ``F_x``, the deciding quantile is

        ``F_x^{-1}(Phi(k z))``, ``z = Phi^{-1}(level)``, ``k = f width``,

    where ``f`` is the `leave_one_out_factor` of the training data on the side of the limit. The
    ``width`` increases with each violation, and decreases in rounds without a violation. (If
    ``z < 1``, the normal score is ``f (z + width - 1)`` instead of ``k z``, so that it increases in
    the width at any level.) Two limits share the allowed probability of a violation: at each point,
    the limit that is more likely to be violated gets the larger part. The margin of the outcome is
    then the smaller of the margins for both limits.

    **Several outcomes** keep all limits jointly with probability ``level``. The limits share
    ``1 - level`` in the same way (Bonferroni): if only one limit is likely to be violated, its
    level is hardly above ``level``. A point is certified if all margins are at least 0. There is
    one budget and one width: a point that violates the limits of several outcomes counts once.

    **Guarantee.** Among the first ``T`` certified points, at most

        ``violation_bound(T) = (1 - level) T + budget + level``

    violate a limit. This holds for *any* model, any rule that selects points, and any environment,
    even an environment that sees the quantiles before it responds. There may be several points in a
    round, and outcomes may arrive late, out of order or never: a pending outcome counts as a
    violation. `Budget` gives the proof. Once the budget is spent, no further point is certified.

    The guarantee is about outcomes. `objective_coverage_bound` gives a weaker guarantee for
    noise-free values. There is no guarantee for uncertified points, nor for any single point: for
    statements about one point, see `recommend` and `ConfirmationTest`.

    **Contexts.** If some inputs of the model are an uncontrolled context ``c``, a decision ``x`` is
    certified if ``P(lower <= y(x, c) <= upper) >= level`` for *every* distribution of ``c`` in an
    ambiguity set. With an upper limit only, and ``k`` as above, the condition is

        ``min_p E_p[Phi(score(upper; x, c) / k)] >= level``,

    where ``score`` is the normal score of the limit under the model's predictive distribution, such
    as ``(upper - mean) / deviation``. The deciding quantile is the smallest limit that meets this
    condition. All methods then take decisions ``... x d_x`` without contexts, except `observe`,
    whose points include the observed contexts. The guarantee holds even if the ambiguity set is
    wrong, since violations are counted. Few violations do not make the quantiles narrower, since
    the observed contexts may have been milder than the worst case.

    Args:
        model: Any model of one outcome: a Gaussian process, a model whose posterior has quantiles,
            or a `CalibratedModel` with ``denoise=False``. If hyperparameters are fitted, first
            collect about 8 observations per input dimension: fits to fewer data are unreliable. If
            they are given, pass the `sharpened` process. For several outcomes, pass a dictionary
            that maps outcome names to models on the same inputs.
        upper: Upper limit in units of the outcome, or None. If outcomes are counts or rounded, put
            the limit halfway between the largest allowed value and the next possible value: the
            same outcomes violate it, and a continuous model certifies more points.
        lower: Lower limit in units of the outcome, or None.
        level: Probability, in (0, 1), with which all outcomes must be within the limits.
        width: A constant that replaces ``k = f width``; 1 uses the model's own quantiles. The
            default, None, adapts ``f`` and ``width`` to the data.
        budget: Number of violations allowed beyond the stated share, see `Budget`. If more than a
            few points are pending at a time, add ``level`` for each pending point. Infinity means
            no guarantee.
        limits: ``{name: (lower, upper)}``, in place of ``upper`` and ``lower``, for named models.
        rows: The `decisions` of an earlier constraint, in the same order, with the outcomes that
            have arrived. With equal models, the new constraint is numerically identical to the
            earlier one. Omit points that were never run: pending outcomes count as violations.
        ambiguity: The ambiguity set of context distributions, if there are contexts. The set must
            provide a worst distribution; a set that only bounds expectations by gradients does not.
        contexts: The centre of the ambiguity set, as in `RobustUpperConfidenceBound`: a
            `ContextDistribution`, which says which columns are contexts, or contexts ``n x d_c``.

    Raises:
        InputDataError: If an argument or one of the ``rows`` is malformed, or there is no limit.
        UnsupportedError: If a model has several outputs, describes the objective (``denoise=True``)
            or is a batch of models, or if ``ambiguity`` has no worst distribution.

    Warns:
        CalibrationWarning: If ``rows`` is missing although an earlier constraint decided with this
            model or on the same data. Also if ``rows`` with other levels or sides are ignored.

    Example:
        >>> constraint = ChanceConstraint(gp, upper=1.0, level=0.9)
        >>> certified = constraint.certified(X.unsqueeze(-2))  # 20 booleans
        >>> constraint.observe(0.9 * X[:1], Y[:1])  # the outcome of an evaluated point
        >>> constraint = constraint.with_model(gp)  # refitted
        >>> gps = {"cost": gp, "purity": SingleTaskGP(X, X.sum(dim=-1, keepdim=True))}
        >>> both = ChanceConstraint(gps, limits={"cost": (None, 1.0), "purity": (0.2, None)})
    """

    def __init__(
        self,
        model: Model | Mapping[str, Model],
        upper: float | None = None,
        lower: float | None = None,
        level: float = 0.9,
        width: float | None = None,
        budget: float = SIZE,
        limits: Limits | None = None,
        rows: Iterable[Mapping[str, Any]] | None = None,
        ambiguity: AmbiguitySet | None = None,
        contexts: ContextDistribution | Tensor | None = None,
    ) -> None:
        models, limits = _by_name(model, upper, lower, limits)
        self.models: dict[str, Any] = {name: _checked_model(models[name]) for name in limits}
        self._contexts: WorstContexts | None = None
        if ambiguity is not None and contexts is not None:
            self._contexts = WorstContexts(ambiguity, contexts, self.model)
        elif ambiguity is not None or contexts is not None:
            raise InputDataError(
                "Give both of `ambiguity` and `contexts`, or neither; TotalVariationBall(0.0) "
                "takes the distribution of the contexts as it is."
            )
        # The contexts so far may have been mild. So with contexts, few violations do not make the
        # quantiles narrower: the excess stays at least 0.
        least_excess = LEAST_EXCESS if self._contexts is None else 0.0
        super().__init__(limits, level, budget, () if rows is None else rows, least_excess)
        self._check_points_of_rows()
        self._withdrawn: list[Row] = []
        # Decisions about outcomes that were ignored since they seemed to be recorded before. If a
        # refitted model shows that they were further measurements, `with_model` records them.
        self._ignored: deque[Row] = deque(maxlen=_MOST_IGNORED)
        # The training data that the models had before the first decision, as rows.
        self._first_rows = self._rows_before_decisions()
        self.width = None if width is None else check_positive("width", width)
        # Caches that are valid while the models are in these states: see `_renew`.
        self._states: list[Any] = []
        self._factor: dict[tuple[str, float], float] = {}
        self._deviations: list[Tensor] = []
        parts = _parts_of(self.models.values())
        if rows is None and have_decided(parts, self._statement, self._train_data()):
            warn(
                "An earlier constraint has decided with this model or on these data, and a new "
                "constraint counts violations from zero. Continue with `with_model`, or with "
                "`ChanceConstraint(..., rows=)` and the `decisions` of the earlier constraint."
            )

    @classmethod
    def from_history(
        cls,
        model: Model | Mapping[str, Model],
        upper: float | None = None,
        lower: float | None = None,
        level: float = 0.9,
        num_initial: int = 0,
        calibrator: Calibrator | None = None,
        **settings: Any,
    ) -> Self:
        """Return a constraint on fitted Gaussian processes, optionally calibrated on their data.

        Args:
            model: A fitted exact Gaussian process of the constrained outcome, see
                `CalibratedModel.from_history`, or a dictionary of processes by outcome name. With
                only a handful of observations, scale the outcome by a known constant instead of
                ``Standardize``: if two values happen to be close, all predictions look certain.
            upper: Upper limit, as in the class.
            lower: Lower limit, as in the class.
            level: Probability, as in the class.
            num_initial: Number of initial observations (the design) that the calibrator skips.
            calibrator: A calibrator, which is copied for each model and trained on the history of
                the model (default: none, since the width adapts).
            settings: Further arguments of the class.

        Raises:
            UnsupportedError: If a model is not an exact Gaussian process with one output.
        """

        def calibrated(gp: Model) -> Model:
            if calibrator is None:
                return gp
            return CalibratedModel.from_history(gp, calibrator, num_initial, denoise=False)

        if isinstance(model, Mapping):
            model = {name: calibrated(gp) for name, gp in model.items()}
        else:
            model = calibrated(model)
        return cls(model, upper, lower, level, **settings)

    @property
    def model(self) -> Any:
        """The model of the first outcome; ``models`` holds the models of all outcomes."""
        return next(iter(self.models.values()))

    @property
    def calibrator(self) -> Calibrator | None:
        """The calibrator of `model`, which `with_model` passes on, or None."""
        return _calibrator_of(self.model)

    @in_turn
    def with_model(self, model: Model | Mapping[str, Model]) -> Self:
        """Return this constraint, with its record of past decisions, on refitted models.

        Args:
            model: A model of the same outcome, fitted to all data so far, or several models by
                name. A model without a calibrator takes over the calibrator of the model that it
                replaces. Call `observe` with new data before, so that the quantiles of the old
                models judge the new outcomes.

        Raises:
            InputDataError: If the names differ from the present ones.
            BotorchTensorDimensionError: If ``model`` has inputs of a different width.

        Warns:
            CalibrationWarning: If outcomes that `observe` ignored are further measurements in the
                data of ``model``. Their decisions, with the earlier quantiles, count from now on.
        """
        given = model if isinstance(model, Mapping) else {next(iter(self.models)): model}
        if given.keys() != self.models.keys():
            raise InputDataError(f"`model` must hold models by the names {[*self.models]}.")
        twin = copy.copy(self)
        twin.models = {}
        for name, present in self.models.items():
            refitted = sole_member(given[name])
            if _calibrator_of(present) and not _calibrator_of(refitted):
                refitted = present.with_model(refitted)
            twin.models[name] = _checked_model(refitted)
            check_same_width(present, refitted)
        twin._check_points_of_rows()
        twin._count_ignored()
        return twin

    # ------------------------------------------------------------ the margin

    def margin(self, X: Tensor, confidence: float | None = None) -> Tensor:
        r"""Distance of the deciding quantile from the limit, at least 0 at certified points.

        The margin is differentiable in ``X``. Once the budget is spent, the margin without a
        ``confidence`` is at most minus one standard deviation of the outcome.

        Args:
            X: Points ``b x 1 x d``, in the precision of the model.
            confidence: Confidence, in (0, 1), of a statement about *one point* instead of all
                rounds: the ``level``-quantile of outcomes at the point is within the limit. The
                width is then 1.1, and ``z sqrt(v_n) + Phi^{-1}(confidence) sqrt(v_f)`` replaces
                ``z sqrt(v_f + v_n)``, where ``z = Phi^{-1}(level)``, ``v_n`` is the variance of the
                noise, and ``v_f`` is the variance of the noise-free value.

        Returns:
            Margins of shape ``b``, in units of the outcome. For several outcomes, the smallest
            margin after division by `typical_deviations`.
        """
        return self._least(self.margins(X, confidence))

    def margins(self, X: Tensor, confidence: float | None = None) -> list[Tensor]:
        """The `margin` of each outcome, ``b``, in its units and in the order of the limits."""
        return self.stated_margins(X, confidence)[1]

    def stated_margins(
        self, X: Tensor, confidence: float | None = None
    ) -> tuple[dict[str, CalibratedPosterior], list[Tensor]]:
        """Return the predicted outcomes at `inputs` by name, and the `margins` based on them."""
        if check_tensor("X", X).dim() < 2 or X.shape[-2] != 1:
            raise BotorchTensorDimensionError(
                f"`X` must have shape b x 1 x d, one point at a time, got {tuple(X.shape)}."
            )
        self.check_points("X", X)
        stated, ends = self._stated(X, confidence)
        margins = self._inside(ends)
        if confidence is not None or self.budget.allows(*self._at_stake()):
            return stated, margins
        deviations = ((spread_of(each).deviation, name) for name, each in stated.items())
        least = [-self.in_contexts(*each) for each in deviations]
        return stated, [*map(torch.minimum, margins, least)]

    def optimism(self, X: Tensor) -> Tensor:
        """Return optimistic margins ``b`` at ``b x 1 x d``, to rank points if none is certified.

        An optimistic margin is the margin if the noise-free value were known to be one standard
        deviation better than expected: for an upper limit,
        ``upper - mean - z sqrt(v_n) + sqrt(v_f)`` (notation as in `margin`). Several limits share
        ``1 - level`` equally here. Margins of several outcomes are combined as in `margin`.
        """
        self.check_points("X", X)
        stated = {name: spread_of(each) for name, each in self._outcomes(X).items()}
        ends = []
        for side in self._sides:
            center, _, of_objective, of_noise = stated[side.name]
            ends.append(center + side.sign * (self._equal_score * of_noise - of_objective))
        return self._least([*map(self.in_contexts, self._inside(ends), self.models)])

    def inputs(self, X: Tensor) -> Tensor:
        """Return the points ``b x 1 x d`` or, with contexts, all pairs ``b x M x 1 x d``."""
        return X if self._contexts is None else self._contexts.pairs(X)

    def in_contexts(self, values: Tensor, name: str) -> Tensor:
        """Return ``values`` unchanged or, with contexts, their worst-case expectations.

        The result is ``b``. With ``M`` contexts, ``values`` is ``b x M``, and expectations are the
        smallest over the ambiguity set. ``name`` is the name of the outcome.
        """
        if self._contexts is None:
            return values
        return self._contexts.expectation(values, self.models[name])

    def _outcomes(self, X: Tensor) -> dict[str, CalibratedPosterior]:
        inputs = self.inputs(X)
        return {name: stated_outcomes(model, inputs) for name, model in self.models.items()}

    def _stated(
        self, X: Tensor, confidence: float | None = None
    ) -> tuple[dict[str, CalibratedPosterior], list[Tensor]]:
        """Return the predicted outcomes, and the deciding quantile ``b`` for each limit."""
        self._renew()
        outcomes = self._outcomes(X)
        if len(self._sides) > 1:
            kept = [score for each in outcomes.items() for score in self._scores_of_limits(*each)]
            scores = widening.scores_of_parts(self.level, torch.stack(kept))
        else:
            scores = torch.tensor([self._equal_score], dtype=torch.double, device=X.device)
        sides = zip(self._sides, scores, strict=True)
        ends = [self._quantile(outcomes[side.name], side, z, confidence) for side, z in sides]
        return outcomes, ends

    def _scores_of_limits(self, name: str, outcome: CalibratedPosterior) -> list[Tensor]:
        """Normal scores ``b`` of the probability that each limit of one outcome is kept."""
        z = outcome.target_mean.new_tensor(NormalDist().inv_cdf(self.level))
        sides = [side for side in self._sides if side.name == name]
        limits = outcome.target_mean.new_tensor([side.limit for side in sides])
        below = at_points(outcome.score(limits.view(-1, *[1] * len(outcome.shape))))
        scores = []
        for side, own in zip(sides, below, strict=True):
            factor, k = self._factors(side)
            scores.append(widening.narrowed(side.sign * own / factor, z, k))
        if self._contexts is None:
            return scores
        return [self._contexts.score(score, self.models[name]) for score in scores]

    def _quantile(
        self, outcome: CalibratedPosterior, side: Side, z: Tensor, confidence: float | None
    ) -> Tensor:
        """The deciding quantile ``b`` for one limit, whose level has the normal score ``z``."""
        factor, k = self._factors(side, of_one_point=confidence is not None)
        z = z if self._contexts is None else z.unsqueeze(-1)
        more: Tensor | float = 0.0
        if confidence is not None:
            own = NormalDist().inv_cdf(check_open_unit("confidence", confidence))
            _, deviation, of_objective, of_noise = spread_of(outcome)
            more = factor * k * (z * of_noise + own * of_objective - z * deviation)
        score = side.sign * factor * widening.widened(z, k)
        if not outcome.is_gaussian:
            score = score.clamp(-_FARTHEST, _FARTHEST)
        end = at_points(outcome.at_score(score[..., None, None])) + side.sign * more
        end = end.to(outcome.dtype)
        if self._contexts is None:
            return end

        def at_most(t: Tensor) -> Tensor:
            """Normal scores of ``P(side.sign * y <= t)`` under the widened distribution."""
            values = side.sign * (t - more)
            score = side.sign * at_points(outcome.score(values[..., None, None]))
            return widening.narrowed(score / factor, z, k)

        model = self.models[side.name]
        return side.sign * self._contexts.quantile(z, model, at_most, side.sign * end)

    def _inside(self, ends: Sequence[Tensor]) -> list[Tensor]:
        """Return the margin ``b`` of each outcome from its deciding quantiles, the ``ends``."""
        margins: dict[str, list[Tensor]] = {name: [] for name in self.limits}
        for side, end in zip(self._sides, ends, strict=True):
            margins[side.name].append(side.sign * (side.limit - end))
        return [torch.stack(own).amin(dim=0) for own in margins.values()]

    def _least(self, values: Sequence[Tensor]) -> Tensor:
        """Return the only margin, or the smallest of margins divided by typical deviations."""
        if len(values) == 1:
            return values[0]
        pairs = zip(values, self.typical_deviations(), strict=True)
        return torch.stack([value / deviation for value, deviation in pairs]).amin(dim=0)

    def _factors(self, side: Side, of_one_point: bool = False) -> tuple[float, float]:
        """Return the leave-one-out factor, cached, and the width; or a constant width and 1."""
        if self.width is not None:
            return self.width, 1.0
        key, kept = (side.name, side.sign), self._factor  # another thread may replace `_factor`
        if key not in kept:
            kept[key] = widening.leave_one_out_factor(self.models[side.name], self.level, side.sign)
        return kept[key], widening.OF_ONE_POINT if of_one_point else widening.width(self.account)

    @property
    def _equal_score(self) -> float:
        """The normal score that the level of each limit has if all share ``1 - level`` equally."""
        return NormalDist().inv_cdf(1.0 - (1.0 - self.level) / len(self._sides))

    def _renew(self) -> None:
        """Clear caches if a model was replaced or changed in place."""
        processes = [*map(observed_process, self.models.values())]
        states = [*self.models.values(), *processes, *map(ModelState, processes)]
        if states != self._states:
            self._states, self._factor, self._deviations = states, {}, []

    def check_points(self, name: str, X: Tensor) -> None:
        """Raise unless points have the number of columns and the precision of the models' inputs.

        Points are ``... x d``, without contexts. The task column of a multi-task model may be
        omitted. Errors call the argument ``name``.
        """
        for model in self.models.values():
            of_model = X
            if self._contexts is not None:
                of_model = self._contexts.check_decisions(name, X, model)
            check_fits(model, of_model, name)

    def _check_points_of_rows(self) -> None:
        """Raise unless the points of all rows have the number of columns of the models' inputs."""
        if (inputs := raw_train_inputs(self.model)) is None:
            return
        lengths = [len(row["point"]) for row in self._rows]
        for length in {*lengths} - {0}:  # a row with an empty point matches no outcome
            name = f"rows[{lengths.index(length)}]['point']"
            try:
                self.check_points(name, inputs.new_zeros(1, length))
            except BotorchTensorDimensionError as error:
                raise InputDataError(
                    f"{error} Pass a `model` with the inputs of these rows, or rows with the "
                    "inputs of this model."
                ) from error

    def _whole(self, points: Iterable[list[float]]) -> list[list[float]]:
        """Return points with the column of the output task, if any, which callers may omit."""
        observed = observed_process(self.model)
        if self._contexts is not None or not isinstance(observed, MultiTaskGPyTorchModel):
            return [*points]
        tensors = (torch.tensor(point, dtype=torch.double) for point in points)
        return [with_task_feature(observed, point).tolist() for point in tensors]

    @torch.no_grad()
    def certified(self, X: Tensor) -> Tensor:
        """Return, for each point, whether it would be certified if it were the next decision.

        The points ``X`` are ``b x 1 x d``, and the result is a tensor of ``b`` booleans. Nothing is
        recorded. To decide about several points, call `decide`, which counts the points before each
        point as pending.
        """
        return self.margin(X) >= 0.0

    @property
    def num_contexts(self) -> int:
        """Number of contexts at which each point's outcome is predicted; 0 without contexts."""
        return 0 if self._contexts is None else self._contexts.centre.num_points

    def known_decisions(self) -> list[Tensor]:
        """Training inputs ``n x d`` of each model that has any, untransformed, without contexts.

        The task column of a multi-task model may be omitted in decisions. So the inputs of its
        output task are listed without this column, too.
        """
        points = [*map(training_points, self.models.values())]
        if self._contexts is None:
            return [known for own in points for known in own]
        return [self._contexts.decisions(known) for own in points for known in own[:1]]

    @torch.no_grad()
    def typical_deviations(self) -> list[Tensor]:
        """Return the standard deviation of each outcome, averaged over the training inputs.

        For a multi-task model, the average is over the inputs of the output task. The results, in
        the order of the limits, are predicted deviations of an outcome with its noise, or 1 for a
        model without training inputs. To compare margins of different outcomes, each is divided by
        the outcome's typical deviation.
        """
        self._renew()
        if not self._deviations:
            deviations = []
            for model in self.models.values():
                # The last set of points is of the output task.
                points, deviation = training_points(model)[-1:], torch.ones(())
                if points and len(points[0]):
                    stated = stated_outcomes(model, points[0].unsqueeze(-2))
                    deviation = spread_of(stated).deviation.mean()
                deviations.append(deviation)
            self._deviations = deviations
        return [*self._deviations]

    def typical_deviation(self) -> Tensor:
        """Return the typical standard deviation of an outcome, in the units of `margin`.

        It is 1 for several outcomes, since `margin` divides by their standard deviations.
        """
        deviations = self.typical_deviations()
        return deviations[0] if len(deviations) == 1 else torch.ones_like(deviations[0])

    def nonlinear_inequality_constraint(self) -> tuple[Callable[[Tensor], Tensor], bool]:
        """Return an element of ``optimize_acqf``'s ``nonlinear_inequality_constraints``.

        ``optimize_acqf`` then needs certified ``batch_initial_conditions``, and ``options`` such as
        ``{"batch_limit": 1, "maxiter": 100, "ftol": 1e-9}``. By default SLSQP may violate a
        constraint by 1e-6, while BoTorch raises an error if the violation exceeds 1e-8. In double
        precision, the function returned here is ``0.01 (margin / deviation - 1e-6)``, where
        ``deviation`` is the `typical_deviation`. So a point at which the function is at least -1e-8
        is certified. `optimize_chance_constrained` needs none of these settings.

        Returns:
            A function of a point of shape ``d``, whose value is at least 0 only at certified
            points, and True, which marks a constraint on single points.
        """
        unit = self.typical_deviation()

        def clear(x: Tensor) -> Tensor:
            room = max(_ROOM, clearance(x.dtype))
            return (self.margin(x.reshape(1, 1, -1)).squeeze(0) / unit - room) * (_TOLERANCE / room)

        return clear, True

    def last_safe(self) -> Tensor | None:
        """Return the latest point, ``1 x d``, with outcomes within all limits, or None.

        Such a point is a fallback after a violation. The result has no columns of contexts.
        Decisions, certified or not, are searched before the initial training data. The result is
        None if no measurement was within the present limits. The next measurement at this point may
        violate a limit: `recommend` finds a point that keeps the limits with high probability.
        """
        inputs = raw_train_inputs(self.model)
        like = torch.zeros((), dtype=torch.double) if inputs is None else inputs
        for row in reversed([*self._first_rows, *self._rows]):
            is_kept = is_outside(self.limits, row["outcomes"], row.get("beyond", {})) is False
            if is_kept and row["point"]:  # the point is empty if the inputs have changed since
                whole = like.new_tensor(self._whole([row["point"]]))
                if self._contexts is not None or in_output_task(self.model, whole).all():
                    return like.new_tensor([row["point"]])
        return None

    # ------------------------------------------------------------ decisions and their outcomes

    @in_turn
    @torch.no_grad()
    def decide(self, X: Tensor) -> list[Row]:
        """Decide about points ``n x d`` with the present quantiles, and record the decisions.

        Call `decide` before the points are evaluated if other decisions follow before the outcomes
        arrive, as in batches or with several workers. Call it also if a point is measured again and
        the outcome may equal an earlier outcome at the point. In a sequential loop `decide` is not
        needed, since `observe` records the decision.

        Returns:
            A row for each point, which may be stored as JSON: see `decisions`. Pending points use
            up the budget, so a point within its limits may remain uncertified.

        Warns:
            CalibrationWarning: If pending decisions use up the budget.
        """
        self.check_points("X", check_inputs("X", X))
        decided = self._decided(X)
        self._record(decided, self.models.values(), self._train_data())
        is_denied = not all(row["certified"] for row in decided)
        if (note := self.note_of_outstanding()) and (is_denied or self.budget_left > 0.0):
            warn(note)
        return copy.deepcopy(decided)

    @in_turn
    @torch.no_grad()
    def observe(
        self,
        X: Tensor,
        Y: Tensor,
        Yvar: Tensor | None = None,
        condition: bool = True,
        beyond: Tensor | None = None,
    ) -> None:
        """Record outcomes and update the models.

        An outcome is judged by the decision that `decide` recorded for its point, even if the point
        has been rounded since (to single precision or six digits). If there is no such decision, a
        decision is made now. If there are several decisions about a point, outcomes are assigned in
        the order of the decisions. Each outcome counts once: if all data are passed again, only new
        outcomes are recorded. An outcome that equals a recorded outcome at its point, without a
        pending decision, is ignored. If the data of a refitted model contain both, `with_model`
        records it, unless the constraint was resumed from rows since. Calibrators learn from all
        outcomes that models were not fitted to.

        Args:
            X: Points ``n x d``, in any order, including the observed contexts.
            Y: Outcomes ``n x m``, one column for each outcome in the order of the limits; NaN for
                pending outcomes.
            Yvar: Noise variances ``n x m``, for models with given noise (default: the mean of the
                training noise). Variances are used to condition models, not to judge outcomes.
            condition: Whether to condition the models on the outcomes.
            beyond: Flags ``n x m``: 1 if an outcome is known only to be above ``Y``, -1 if it is
                below, else 0 (default); True means 1. For example, a run that exhausted 24 GB of
                memory has ``Y = 24`` and the flag 1. It violates any upper limit of 24 or less.
                Under a higher limit a certified point counts as a possible violation from then on,
                since the outcome remains unknown. Models learn a value beyond the bound, computed
                by `stand_ins`; refit models to such values as well.

        Raises:
            InputDataError, BotorchTensorDimensionError: If an argument is malformed, if a model was
                fitted to the outcome of a point without a decision, or if a rounded point matches
                several decisions.
            UnsupportedError: If a model cannot be conditioned.

        Warns:
            CalibrationWarning: If an outcome was recorded before, or is among the initial data.
        """
        check_flag("condition", condition)
        if not len(check_inputs("X", X)):
            return
        for model in self.models.values():
            check_fits(model, X)
        self._check_outcomes(X, Y, Yvar)
        sides = torch.zeros_like(Y) if beyond is None else checked_beyond(beyond, Y)
        by_point = zip(map(numbers_of, Y.cpu()), sides.int().tolist(), strict=True)
        named = (zip(self.limits, *each, strict=True) for each in by_point)
        came = [{name: (y, side) for name, y, side in each if not math.isnan(y)} for each in named]
        decisions = X if self._contexts is None else self._contexts.decisions(X)
        rows = [*self._first_rows, *self._rows]
        known = self._train_data()  # before calibrated models learn in place
        own, points = self._decided_points(rows, decisions.tolist())
        fresh = self._data_of_no_row(known, rows, own.points)
        found = matches(rows, len(self._first_rows), own, points, came, fresh)
        if self._withdrawn:
            self._match_withdrawn(found, points, len(rows))
            rows += self._withdrawn
        taught = []
        for i, (x, outcomes, match) in enumerate(zip(points, came, found, strict=True)):
            told = ((name, *outcomes[name]) for name in match.new)
            learned = {name for name, y, side in told if fresh[name].take(x, y, True, side)}
            taught.append([name in match.new - learned for name in self.limits])
            if match.row is None:
                near = [rows[j] for j in match.near]
                self._check_undecided(f"`X[{i}]`, {x},", x, outcomes, learned, near)
        is_new = torch.tensor([match.row is None for match in found], device=X.device)
        decided = self._decided(decisions[is_new])
        ignored = [i for i, match in enumerate(found) if not match.new]
        # If all known outcomes came again, none of them is a further measurement.
        num_known = sum({*row["outcomes"].values()} != {None} for row in rows)
        kept = ignored[-_MOST_IGNORED:] if len(ignored) < num_known else []
        held = self._decided(decisions[kept])
        if num := len(ignored):
            warn(
                f"{num} of {len(X)} outcomes were recorded before, or are among the initial data "
                "of the model, and are ignored. Call `observe` once for each outcome, with new "
                "outcomes only, before the model is refitted. If a point was measured again with "
                "an equal outcome, call `decide` before each measurement."
            )
        is_taught = torch.tensor(taught, dtype=torch.bool, device=Y.device).view(Y.shape)
        # `_taught` may raise, so it is called before the constraint changes.
        new = torch.where(is_taught, Y, torch.nan)
        models = self._taught(X, new, Yvar, condition, None if beyond is None else sides)
        self._restore({id(rows[match.row]) for match in found if match.row is not None})
        made = iter(decided)
        for match, outcomes in zip(found, came, strict=True):
            row = next(made) if match.row is None else rows[match.row]
            _enter(row, {name: outcomes[name] for name in match.new})
        for i, row in zip(kept, held, strict=True):
            _enter(row, came[i])
        self._ignored.extend(held)
        self._record(decided, {*self.models.values(), *models.values()}, known)
        self.models = models

    @in_turn
    def withdraw(self, X: Tensor) -> None:
        """Withdraw decisions about points ``n x d`` that will never be run.

        Pending decisions count as violations until they are withdrawn. The bound on violations then
        holds for the remaining decisions. Never withdraw a point that was run, even if it failed:
        that voids the bound.

        Each row of ``X`` withdraws the latest pending decision about its point. Rounded points are
        matched as in `observe`. If an outcome arrives, its decision counts again, with a warning.

        Raises:
            InputDataError: If a point has no pending decision, or one of its outcomes has arrived.
        """
        self.check_points("X", check_inputs("X", X))
        if not len(X):
            return
        rows, withdrawn = self._rows, set()
        own, points = self._decided_points(rows, X.tolist())
        outcomes = [{*row["outcomes"].values()} for row in rows]
        for i, point in enumerate(points):
            free = [[j for j in group if outcomes[j] == {None}] for group in own.near(point)]
            row = own.chosen(f"X[{i}]", point, free, last=True)
            if row is None:
                raise InputDataError(
                    f"`X[{i}]`, {point}, has no decision that can be withdrawn: a point with an "
                    "outcome was run, and counts. Withdraw only points that never ran, each once."
                )
            outcomes[row] = set()
            withdrawn.add(row)
        self._withdrawn += [rows[j] for j in sorted(withdrawn)]
        rows[:] = [row for j, row in enumerate(rows) if j not in withdrawn]
        self._accounts.clear()

    def _match_withdrawn(self, found: list[Match], points: Sequence[list[float]], num: int) -> None:
        """Match outcomes without a row in ``found`` with withdrawn rows, numbered from ``num``."""
        own, _ = self._decided_points(self._withdrawn, points)
        free = {*range(len(self._withdrawn))}
        for i, (match, point) in enumerate(zip(found, points, strict=True)):
            near = [[j for j in group if j in free] for group in own.near(point)]
            row = own.chosen(f"X[{i}]", point, near) if match.row is None else None
            if row is not None:
                free.remove(row)
                found[i] = match._replace(row=num + row)

    def _restore(self, told: set[int]) -> None:
        """Restore withdrawn decisions whose outcomes have arrived; ``told`` holds their row ids."""
        run = [row for row in self._withdrawn if id(row) in told]
        if not run:
            return
        self._withdrawn[:] = [row for row in self._withdrawn if id(row) not in told]
        self._rows.extend(run)
        warn(
            f"{len(run)} of the outcomes belong to withdrawn decisions, which count again. "
            "Withdraw only points that were never run."
        )

    def _check_undecided(
        self,
        subject: str,
        point: list[float],
        outcomes: Mapping[str, tuple[float, int]],
        learned: set[str],
        rows: Iterable[Row],
    ) -> None:
        """Raise if a decision about a point would be too late, as its outcomes may be known.

        ``outcomes`` maps names to ``(value, side)``, where ``side`` is 0 for an exact value, and 1
        or -1 for a lower or upper bound. An exact value beyond a bound that ``rows`` record for
        this point raises an error, since it may be the same outcome. So does any name in
        ``learned``, the outcomes to which models were fitted. Errors call the point ``subject``.
        """
        for row in rows:
            for name, side in row.get("beyond", {}).items():
                bound, (y, own_side) = row["outcomes"][name], outcomes.get(name, (math.nan, 0))
                if not own_side and side * (y - bound) > 0.0:
                    raise InputDataError(
                        f"{subject} has an outcome that was recorded as beyond {bound:g}, and "
                        f"{y:g} may be this outcome or a stand-in for it. Pass the bound "
                        "with `beyond`, enter the value into the row, or call `decide` before the "
                        "point is measured again."
                    )
        if not learned:
            return
        ignored, _ = self._decided_points([*self._ignored], [point])
        if ignored.near(point)[-1]:
            cause = (
                "An outcome at this point was ignored, with a warning, since an equal one was "
                "recorded before: it was a further measurement, or this outcome is. If a point is "
                "measured again, call `decide` before each measurement."
            )
        elif all(_calibrator_of(self.models[name]) is None for name in learned):
            cause = (
                "Call `observe` first, then refit, then `with_model`; here, call `observe` of the "
                "constraint with the earlier model. If outcomes arrive later, call `decide` before "
                "a point is evaluated."
            )
        else:
            cause = (
                "Call `observe` of the constraint before anything else changes the calibrated "
                "model. If constraints, or a constraint and an objective, share the model, make "
                "one `ChanceConstraint` with all outcomes by name and all limits, or call `decide` "
                "of each before the evaluation. If the model was refitted, call `observe` of the "
                "constraint with the model before the refit now, then `with_model`; next time, "
                "call `observe` before the refit."
            )
        raise InputDataError(
            f"{subject} was not decided about, and the model has been fitted to its outcome: a "
            f"decision now would use hindsight. {cause}"
        )

    def _count_ignored(self) -> None:
        """Record ignored outcomes that are further measurements in the data of the models."""
        if not self._ignored:
            return
        rows = [*self._first_rows, *self._rows]
        points = self._whole(row["point"] for row in rows)
        data = self._data_of_no_row(self._train_data(), rows, points, is_out_counted=True)

        def is_measured(row: Row) -> bool:
            (point,) = self._whole([row["point"]])
            sides, came = row.get("beyond", {}), row["outcomes"].items()
            told = {name: (y, sides.get(name, 0)) for name, y in came if y is not None}
            return take_together(data, point, told)

        is_further = [*map(is_measured, self._ignored)]
        further = [*compress(self._ignored, is_further)]
        if not further:
            return
        left = [row for row, own in zip(self._ignored, is_further, strict=True) if not own]
        self._ignored.clear()
        self._ignored.extend(left)
        num, at_stake = self._at_stake()
        for row in further:  # ignored decisions did not take up the budget
            row["certified"] = row["certified"] and self.budget.allows(num, at_stake)
            num, at_stake = num + row["certified"], at_stake + row["certified"]
        self._record(further, self.models.values(), {})
        warn(
            f"{len(further)} of the outcomes that `observe` ignored, since equal outcomes were "
            "recorded before, are further measurements in the data of the new model. They count "
            "now, by the quantiles from before. If a point is measured again, call `decide` before "
            "each measurement."
        )

    def _decided_points(
        self, rows: list[Row], given: Sequence[list[float]]
    ) -> tuple[DecidedPoints, list[list[float]]]:
        """Return the points of ``rows``, and the ``given`` points, prepared for matching."""
        points = self._whole([*(row["point"] for row in rows), *given])
        known = [inputs.tolist() for inputs in self.known_decisions()]
        data = [x for x in sum(known, []) or points if len(x) == len(points[-1])]
        table = torch.tensor(data, dtype=torch.double)
        decided = DecidedPoints(points[: len(rows)], table.amax(dim=0) - table.amin(dim=0))
        return decided, points[len(rows) :]

    @staticmethod
    def _data_of_no_row(
        known: Data,
        rows: list[Row],
        points: Sequence[list[float]],
        is_out_counted: bool = False,
    ) -> dict[str, KnownData]:
        """Return the part of the training data ``known`` that belongs to none of the ``rows``.

        ``points`` are the points of the rows. With ``is_out_counted``, the last observation at the
        point of a pending decision is taken to be the outcome of this decision.
        """
        data = {}
        for name, own in known.items():
            data[name] = KnownData(*own)
            observed = [
                (point, row["outcomes"].get(name), row.get("beyond", {}).get(name, 0))
                for point, row in zip(points, rows, strict=True)
                if row["outcomes"].get(name) is not None
                or (is_out_counted and name in row["outcomes"])
            ]
            data[name].take_all(observed)
        return data

    def _rows_before_decisions(self) -> list[Row]:
        """Return the training data from before the first decision, as rows without decisions."""
        by_point: dict[tuple[float, ...], list[Row]] = defaultdict(list)
        points = self._whole(row["point"] for row in self._rows)
        known = self._data_of_no_row(self._train_data(), self._rows, points, is_out_counted=True)
        for name, data in known.items():
            for point, values in data.values.items():
                own = by_point[point]
                own.extend({"point": [*point], "outcomes": {}} for _ in values[len(own) :])
                for row, y in zip(own, values, strict=False):
                    row["outcomes"][name] = y
        return sum(by_point.values(), [])

    def _check_outcomes(self, X: Tensor, Y: Tensor, Yvar: Tensor | None) -> None:
        """Raise unless ``Y`` and ``Yvar`` are ``n x m``, with one or more outcomes in each row."""
        shape = len(X), len(self.limits)
        for name, values in {"Y": Y, "Yvar": Yvar}.items():
            if values is not None and check_tensor(name, values).shape != shape:
                raise BotorchTensorDimensionError(
                    f"`{name}` must have shape {shape[0]} x {shape[1]}, one row for each of `X` "
                    f"and one column for each outcome, got {tuple(values.shape)}."
                )
        check_precision("Y", Y, X.dtype)
        if Y.isinf().any() or Y.isnan().all(dim=-1).any():
            raise InputDataError("`Y` must hold finite outcomes, at least one in each row.")

    def _decided(self, X: Tensor) -> list[Row]:
        """Decide about points ``n x d``, and return the rows without recording them."""
        if not len(X):
            return []
        _, ends = self._stated(X.unsqueeze(-2))
        inside = (torch.stack(self._inside(ends)) >= 0.0).all(dim=0).tolist()
        num, at_stake = self._at_stake()
        decided = []
        each = zip(X.tolist(), inside, torch.stack(ends, dim=-1).tolist(), strict=True)
        for point, is_inside, values in each:
            certified = is_inside and self.budget.allows(num, at_stake)
            num, at_stake = num + certified, at_stake + certified
            row: Row = {"point": point, "level": self.level, "certified": certified}
            row["limits"] = {name: [*pair] for name, pair in self.limits.items()}
            row["quantiles"] = {name: [None, None] for name in self.limits}
            for side, end in zip(self._sides, values, strict=True):
                # JSON has no infinite numbers.
                within = min(max(end, -_GREATEST), _GREATEST)
                row["quantiles"][side.name][side.sign > 0.0] = within
            decided.append({**row, "outcomes": dict.fromkeys(self.limits)})
        return decided

    def _record(self, decided: list[Row], models: Collection[Model], data: Data) -> None:
        """Record decisions of ``models``, and register them, so that `have_decided` finds them.

        ``data`` are the `_train_data` that the deciding models had.
        """
        self._rows.extend(decided)
        self._accounts.clear()
        points = [row["point"] for row in decided]
        leave_traces(_parts_of(models), self._statement, points, data)

    def _train_data(self) -> Data:
        """The training inputs ``n x d``, without contexts, and outcomes ``n x 1`` by outcome."""
        data = {name: train_data(model) for name, model in self.models.items()}
        if self._contexts is None:
            return data
        decisions = self._contexts.decisions
        return {name: (decisions(X) if len(X) else X, Y) for name, (X, Y) in data.items()}

    def _taught(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None, condition: bool, sides: Tensor | None
    ) -> dict[str, Any]:
        """Update the calibrators with observations, and return the models by outcome name.

        With ``condition``, the models are conditioned. NaN in ``Y`` is skipped. ``sides`` is 1 if
        an outcome is above ``Y``, -1 if it is below, and 0 if it equals ``Y``.
        """
        taught, lessons = dict(self.models), []
        for column, (name, model) in enumerate(self.models.items()):
            came = ~Y[:, column].isnan()
            is_calibrated = _calibrator_of(model) is not None
            if not came.any() or not (condition or is_calibrated):
                continue
            own = X[came], Y[came][:, [column]], None if Yvar is None else Yvar[came][:, [column]]
            x, y, yvar = checked_observations(model, *own)
            beyond = None if sides is None else sides[came][:, [column]].to(y)
            if is_calibrated:
                lessons.append((model, x, y, yvar, condition, beyond))
                continue
            y = y if beyond is None else stand_ins(model, x, y, beyond)
            if isinstance(model, Surrogate):
                taught[name] = model.with_observations(x, y, yvar)
            else:
                taught[name] = with_observations(model, x, y, yvar)
        for model, *lesson in lessons:  # last, since this changes calibrators in place
            model.learn(*lesson)
        return taught

    @property
    def _statement(self) -> tuple[Any, ...]:
        return *self.limits.items(), self.level


def _enter(row: Row, outcomes: Mapping[str, tuple[float, int]]) -> None:
    """Enter outcomes, given as ``(value, side)`` by name, into a row; see `matches`."""
    for name, (y, side) in outcomes.items():
        row["outcomes"][name] = y
        if side:
            row.setdefault("beyond", {})[name] = side


def stated_outcomes(model: Model, X: Tensor) -> CalibratedPosterior:
    """Return predicted outcomes, with noise, at ``b x 1 x d``, regardless of pending points."""
    subject = "A quantile of an outcome"
    return predict(model, X, observed=True, objective=False, sole_values=subject)


def at_points(values: Tensor) -> Tensor:
    """Return the values of a prediction at single points, ``... x 1 x 1``, in shape ``...``."""
    return values.squeeze(-1).squeeze(-1)


def spread_of(stated: CalibratedPosterior) -> Spread:
    """Return the center and deviations (see `Spread`) of the outcomes predicted by ``stated``.

    At ``b`` single points, each of them has shape ``b``, in the dtype of ``stated``.
    """
    return Spread(*(at_points(values).to(stated.dtype) for values in stated.spread()))


def _by_name(
    model: Model | Mapping[str, Model],
    upper: float | None,
    lower: float | None,
    limits: Limits | None,
) -> tuple[Mapping[str, Model], Limits]:
    """Return the models and the limits as dictionaries, both with the outcome names as keys."""
    if not isinstance(model, Mapping):
        if limits is not None:
            raise InputDataError("`limits` are for models by name: give `upper`, `lower` or both.")
        return {SOLE: model}, {SOLE: (lower, upper)}
    is_alone = upper is None and lower is None and isinstance(limits, Mapping)
    if not is_alone or not limits or limits.keys() != model.keys():
        raise InputDataError(
            "`limits` must be a dictionary of pairs `(lower, upper)` by the names of the models, "
            f"{[*model]}, in place of `upper` and `lower`; got {limits!r}."
        )
    return model, limits


def _parts_of(models: Collection[Model]) -> set[Any]:
    """Return the models, their processes and calibrators: another constraint may reuse them."""
    return {*models, *map(observed_process, models), *map(_calibrator_of, models)} - {None}


def _calibrator_of(model: Model) -> Calibrator | None:
    return model.calibrator if isinstance(model, Surrogate) else None


def _checked_model(given: object) -> Any:
    """Return the model, or the only model of a list; raise if a constraint cannot use it."""
    model = sole_member(check_model(given))
    check_sole_outcome(
        model, "give a dictionary of models by outcome, and their `limits`; each model is"
    )
    if _calibrator_of(model) is not None and model.denoise:
        raise UnsupportedError(
            "`model` is denoised: it describes the noise-free objective, while limits apply to "
            "outcomes. Make it with `denoise=False`."
        )
    if any(isinstance(part, Surrogate) for part in [*model.modules()][1:]):
        raise UnsupportedError(
            f"The model inside this {type(model).__name__} is calibrated: pass the inner model "
            "itself."
        )
    check_process(observed_process(model))
    if batch_shape := batch_of_models(model):
        raise UnsupportedError(
            f"`model` must not be a batch of models, got batch shape {[*batch_shape]}."
        )
    return model
