"""`ChanceConstraint`: an outcome within its limits with a stated probability, kept true."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from statistics import NormalDist
from typing import Any, NamedTuple, Self

import torch
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.models.gpytorch import MultiTaskGPyTorchModel
from botorch.models.model import Model
from botorch.utils.probability.utils import ndtr
from torch import Tensor

from botorch_calib._validation import (
    check_flag,
    check_inputs,
    check_instance,
    check_model,
    check_open_unit,
    check_pairs,
    check_positive,
    check_precision,
    check_tensor,
    numbers_of,
)
from botorch_calib.calibration import Calibrator
from botorch_calib.decisions.account import (
    KEYS,
    DecisionAccount,
    Record,
    Side,
    checked_records,
    have_decided,
    leave_traces,
)
from botorch_calib.decisions.budget import SIZE
from botorch_calib.decisions.predicted_outcome import LEAST, MOST, OutcomeQuantiles
from botorch_calib.decisions.shared_risk import scores_of_parts
from botorch_calib.decisions.widening import (
    OF_ONE_POINT,
    leave_one_out_factor,
    narrowed,
    widened,
    width,
)
from botorch_calib.decisions.worst_contexts import WorstContexts
from botorch_calib.exceptions import CalibrationWarning, level_of_caller
from botorch_calib.models import CalibratedModel, CensoredDelayModel
from botorch_calib.models.conditioning import with_observations
from botorch_calib.models.process import (
    observed_process,
    raw_train_inputs,
    sole_member,
    with_task_feature,
)
from botorch_calib.models.requirements import (
    batch_of_models,
    check_fits,
    check_process,
    check_same_width,
    checked_observations,
)
from botorch_calib.robust import AmbiguitySet, ContextDistribution

# BoTorch accepts violations up to the former, which stands for the latter in standard deviations.
_TOLERANCE, _ROOM = 1e-8, 1e-6


class ChanceConstraint(DecisionAccount):
    r"""``P(lower <= y <= upper) >= level`` for an outcome ``y``, an observation with its noise.

    A point is *certified* if the outcome keeps its limits with that probability. The margin at
    ``x``, then at least 0, is the distance from a quantile of the outcome up to its upper limit (or
    from its lower limit up to a quantile). With the model's predictive distribution ``F_x`` the
    quantile of a single limit is

        ``F_x^{-1}(Phi(k z))``, ``z = Phi^{-1}(level)``, ``k = f width``,

    with the `leave_one_out_factor` ``f`` of the model's own data, and a `width` that grows with
    each miss in excess of the stated share, and falls without. (Where ``z < 1``, the score is
    ``f (z + width - 1)``, so that it grows at any level.) Two limits share the probability of a
    violation: at each point each gets a part by how probable it is to be violated there, and the
    margin is the smaller of the two.

    **Guarantee.** For *any* model, rule of choice and environment, even one that sees the quantiles
    before it answers: of the first ``T`` certified points at most

        ``violation_bound(T) = (1 - level) T + budget + level``

    violate a limit. It holds for several points in a round, and for outcomes that come late, out of
    order or never: until they come they count as violations. `Budget` has the proof, in one line.
    Once the budget is spent, nothing is certified any more, for good.

    The guarantee is on the outcome. On the noise-free value behind it there is a weaker one,
    `objective_coverage_bound`. There is none for points that were not certified, nor for a single
    point: see `recommend` and `ConfirmationTest`.

    **Contexts.** Where part of the model's inputs is a context ``c`` that nobody controls, a
    decision ``x`` is certified if ``P(lower <= y(x, c) <= upper) >= level`` for *every*
    distribution of ``c`` in an ambiguity set: with ``k`` as above, for an upper limit alone,

        ``min_p E_p[Phi(score(upper; x, c) / k)] >= level``,

    where ``score`` is the normal score of the limit by the model's predictive distribution, such as
    ``(upper - mean) / deviation``. The quantile that decides is the least limit for which that
    holds. All points are decisions then, ``b x 1 x d_x``; only `observe` is told the contexts that
    came. The guarantee holds whether or not the set is right, since violations are counted, and
    contexts that come kinder than the worst ones do not make quantiles narrower.

    Args:
        model: Any model of one outcome: a Gaussian process, one whose posterior has quantiles, or
            a `CalibratedModel` with ``denoise=False``. With fitted hyperparameters, certify from
            some 8 observations for each input on: the first fits know too little. If they are
            given, take the `sharpened` process.
        upper: Upper limit of the outcome, in its units, or None. Where outcomes are counts or
            rounded, put it halfway between the last one allowed and the next: the same ones violate
            it, and a model that knows no grid certifies what it could.
        lower: Lower limit of the outcome, in its units, or None.
        level: Probability, in (0, 1), with which an outcome shall be within the limits.
        width: A constant in place of ``f width``: 1 for what the model states.
        budget: What may be violated beyond the stated share, see `Budget`. Add ``level`` for each
            point that may be out at a time, beyond a few. Infinity leaves out the guarantee.
        records: `decisions` of an earlier constraint, see `from_records`.
        ambiguity: The set of distributions of the contexts, if there are contexts. Its worst
            distribution has to be known, so it is no bound by gradients.
        contexts: The centre of that set, as of `RobustUpperConfidenceBound`: a
            `ContextDistribution`, which says which columns are contexts, or contexts ``n x d_c``.

    Raises:
        InputDataError: If an argument is malformed, or there is no limit.
        UnsupportedError: If ``model`` has several outputs, is one of the objective
            (``denoise=True``) or a batch of models, or ``ambiguity`` has no worst distribution.

    Warns:
        CalibrationWarning: If decisions have been taken by the model or on its data, and there are
            no ``records``.

    Example:
        >>> constraint = ChanceConstraint(gp, upper=1.0, level=0.9)
        >>> certified = constraint.certified(X.unsqueeze(-2))  # 20 answers
        >>> constraint.observe(X[:1], Y[:1])  # what came of a point that was tried
        >>> constraint = constraint.with_model(gp)  # refitted
    """

    def __init__(
        self,
        model: Model,
        upper: float | None = None,
        lower: float | None = None,
        level: float = 0.9,
        width: float | None = None,
        budget: float = SIZE,
        records: Iterable[Mapping[str, Any]] | None = None,
        ambiguity: AmbiguitySet | None = None,
        contexts: ContextDistribution | Tensor | None = None,
    ) -> None:
        self.model: Any = _checked_model(model)
        self._contexts: WorstContexts | None = None
        if ambiguity is not None and contexts is not None:
            self._contexts = WorstContexts(ambiguity, contexts, self._observed)
        elif ambiguity is not None or contexts is not None:
            raise InputDataError(
                "Give both of `ambiguity` and `contexts`, or neither; TotalVariationBall(0.0) "
                "takes the distribution of the contexts as it is."
            )
        # That contexts come kinder than the worst ones is no reason to trust the model more.
        least_excess = -math.inf if self._contexts is None else 0.0
        super().__init__(upper, lower, level, budget, records, least_excess)
        self._check_records()
        self.width = None if width is None else check_positive("width", width)
        self._factor: float | None = None
        if records is None:
            self._warn_of_earlier_decisions()

    @classmethod
    def from_history(
        cls,
        model: Model,
        upper: float | None = None,
        lower: float | None = None,
        level: float = 0.9,
        num_initial: int = 0,
        calibrator: Calibrator | None = None,
        **settings: Any,
    ) -> Self:
        """A constraint of a fitted Gaussian process, calibrated on its own data if you like.

        Args:
            model: A fitted exact Gaussian process of the constrained outcome, see
                `CalibratedModel.from_history`. With only a handful of data give its outcome a known
                scale rather than ``Standardize`` it: two values that happen to be close would make
                everything look certain.
            upper: As in the class, like the next two.
            lower: Lower limit.
            level: Probability.
            num_initial: Number of initial observations (the design) that the calibrator skips.
            calibrator: Copied, and taught by the history (default: none, since the width learns).
            settings: Further arguments of the class.

        Raises:
            UnsupportedError: If ``model`` is not an exact Gaussian process with one output.
        """
        if calibrator is not None:
            model = CalibratedModel.from_history(model, calibrator, num_initial, denoise=False)
        return cls(model, upper, lower, level, **settings)

    @classmethod
    def from_records(
        cls,
        model: Model,
        records: Iterable[Mapping[str, Any]],
        upper: float | None = None,
        lower: float | None = None,
        level: float = 0.9,
        **settings: Any,
    ) -> Self:
        """The constraint that has taken these decisions, in whatever order outcomes have come.

        It equals the one that was carried on, to the last bit, if the model does.

        Args:
            model: As in the class, with all data so far.
            records: `decisions` of an earlier constraint, in their order. Leave out points that
                were never run; points without an outcome count as violations. (Those of
                `joint_chance_constraints` go back there.)
            upper: As in the class, like all others.
            lower: Lower limit.
            level: Probability.
            settings: ``width``, ``budget``, ``ambiguity`` and ``contexts``.

        Raises:
            InputDataError: If a record is malformed, or of a constraint with other limits.
        """
        if records is None:  # such as a JSON null
            raise InputDataError(
                "`records` must be a list of dictionaries, got None: give the `decisions` of the "
                "earlier constraint, or [] if there are none yet."
            )
        return cls(model, upper, lower, level, records=records, **settings)

    @property
    def calibrator(self) -> Calibrator | None:
        """The calibrator of a calibrated model, which goes on with the next one's; else None."""
        return self.model.calibrator if isinstance(self.model, CalibratedModel) else None

    def with_model(self, model: Model) -> Self:
        """The same constraint, with all it has learned and counted, on a refitted model.

        Args:
            model: A model of the same outcome, fitted to all data so far; a plain one takes over
                the calibrator of a calibrated one. Let the old model observe new data first, since
                its quantiles decided about them.

        Raises:
            BotorchTensorDimensionError: If ``model`` has inputs of another width.
        """
        if isinstance(self.model, CalibratedModel) and not isinstance(model, CalibratedModel):
            model = self.model.with_model(model)
        twin = copy.copy(self)
        twin.model, twin._factor = _checked_model(model), None
        check_same_width(self.model, model)
        twin._check_records()
        self._together[self._place] = twin
        return twin

    # ------------------------------------------------------------ the margin

    def margin(self, X: Tensor, confidence: float | None = None) -> Tensor:
        r"""How far the deciding quantile is inside its limit; at least 0 where certified.

        Differentiable in ``X``. Where the budget is spent, at most minus one standard deviation, as
        long as no ``confidence`` is asked for. Of `joint_chance_constraints` it depends on the
        models of all.

        Args:
            X: Points ``b x 1 x d``, in the precision of the model.
            confidence: The margin of a statement about *this point* rather than about the rounds:
                the quantile of its outcomes is within the limit with this confidence. In place of
                ``z sqrt(v_f + v_n)`` it takes ``z sqrt(v_n) + Phi^{-1}(confidence) sqrt(v_f)``,
                with the variances of noise and noise-free value, and a width of 1.25 at least
                (default: the rounds').

        Returns:
            Margins of shape ``b``, in units of the outcome.
        """
        if check_tensor("X", X).dim() < 2 or X.shape[-2] != 1:
            raise BotorchTensorDimensionError(
                f"`X` must have shape b x 1 x d, one point at a time, got {tuple(X.shape)}."
            )
        self.check_points("X", X)
        return self._margins(X, confidence)[self._place]

    def optimism(self, X: Tensor) -> Tensor:
        """Where to learn while nothing is certified, ``b`` at ``b x 1 x d``: the larger the better.

        The margin if the noise-free value were one standard deviation better than expected:
        ``limit - mean - z sqrt(v_n) + sqrt(v_f)``, with the ``z`` of equal parts if limits share.
        """
        self.check_points("X", X)
        outcome = OutcomeQuantiles(self.model, self.inputs(X))
        likely = self._equal_score * outcome.noise_deviation - outcome.objective_deviation
        ends = [outcome.mean + side.sign * likely for side in self._sides]
        return self.in_contexts(self._margin(ends))

    def inputs(self, X: Tensor) -> Tensor:
        """The model's inputs at ``b x 1 x d``: these, or their pairs with the ``M`` contexts."""
        return X if self._contexts is None else self._contexts.pairs(X)

    def in_contexts(self, values: Tensor) -> Tensor:
        """Values ``b``, or the worst expectations of ``b x M``, the larger the better."""
        if self._contexts is None:
            return values
        return self._contexts.expectation(values, self._observed)

    def _margins(
        self, X: Tensor, confidence: float | None = None, together: Sequence[Self] | None = None
    ) -> list[Tensor]:
        """Margins of all constraints that hold together, ``b`` each."""
        together = together or self._present()
        stated = self._stated(X, together, confidence)
        margins = [each.margin for each in stated]
        if confidence is not None or self._budget.allows(*self._at_stake()):
            return margins
        least = [-c.in_contexts(s.outcome.deviation) for c, s in zip(together, stated, strict=True)]
        return [*map(torch.minimum, margins, least)]

    def _present(self) -> list[Self]:
        """The constraints that hold together, this one among them.

        One that was made `with_model` may have taken its place.
        """
        together = [*self._together]
        together[self._place] = self
        return together

    def _stated(
        self, X: Tensor, together: Sequence[Self], confidence: float | None = None
    ) -> list[_Stated]:
        """Outcome, scores, quantiles and margin of each of the constraints that hold together."""
        outcomes = [OutcomeQuantiles(each.model, each.inputs(X)) for each in together]
        pairs = [*zip(together, outcomes, strict=True)]
        if sum(len(each._sides) for each in together) == 1:
            scores: Any = [self._equal_score]
        else:
            kept = [score for each, outcome in pairs for score in each._scores_of_limits(outcome)]
            scores = scores_of_parts(self.level, torch.stack(kept)).unbind()
        rest, stated = iter(scores), []
        for each, outcome in pairs:
            own = [*islice(rest, len(each._sides))]
            sides = zip(each._sides, own, strict=True)
            ends = [each._quantile(outcome, side, z, confidence) for side, z in sides]
            stated.append(_Stated(outcome, own, ends, each._margin(ends)))
        return stated

    def _scores_of_limits(self, outcome: OutcomeQuantiles) -> list[Tensor]:
        """Normal scores of the stated probabilities that each side's limit is kept, ``b``."""
        (factor, k), z = self._factors(), NormalDist().inv_cdf(self.level)
        below, scores = outcome.scores([side.limit for side in self._sides]), []
        for side, own in zip(self._sides, below, strict=True):
            score = narrowed(side.sign * own / factor, z, k)
            if self._contexts is not None:
                beyond = -self.in_contexts(-ndtr(-score))
                score = -torch.special.ndtri(beyond.clamp(LEAST, MOST))
            scores.append(score)
        return scores

    def _quantile(
        self, outcome: OutcomeQuantiles, side: Side, z: Any, confidence: float | None
    ) -> Tensor:
        """The deciding quantile of a side, ``b``, from the normal score of its level."""
        factor, k = self._factors(of_one_point=confidence is not None)
        if isinstance(z, Tensor):
            z = z.to(outcome.dtype)[(...,) if self._contexts is None else (..., None)]
        more: Tensor | float = 0.0
        if confidence is not None:
            own = NormalDist().inv_cdf(check_open_unit("confidence", confidence))
            stated = z * outcome.noise_deviation + own * outcome.objective_deviation
            more = factor * k * (stated - z * outcome.deviation)
        end = outcome.quantile(side.sign * factor * widened(z, k)) + side.sign * more
        if self._contexts is None:
            return end

        def at_most(t: Tensor) -> Tensor:
            """Normal scores of the widened probability that ``sign * y`` is below ``t``."""
            score = side.sign * outcome.score(side.sign * (t - more))
            return narrowed(score / factor, z, k)

        return side.sign * self._contexts.quantile(z, self._observed, at_most, side.sign * end)

    def _margin(self, ends: Sequence[Tensor]) -> Tensor:
        """The smallest distance of ``ends``, ``b`` for each side, from the limits."""
        sides = zip(self._sides, ends, strict=True)
        margins = [side.sign * (side.limit - end) for side, end in sides]
        return torch.stack(margins).amin(dim=0)

    def _factors(self, of_one_point: bool = False) -> tuple[float, float]:
        """Factor of the model's quantile, kept while the model is, and width by the misses."""
        if self.width is not None:
            return self.width, 1.0
        if self._factor is None:
            self._factor = leave_one_out_factor(self.model)
        k = width(self._account())
        return self._factor, max(k, OF_ONE_POINT) if of_one_point else k

    @property
    def _equal_score(self) -> float:
        """Normal score of each limit's level if all had equal parts."""
        num = sum(len(each._sides) for each in self._together)
        return NormalDist().inv_cdf(1.0 - (1.0 - self.level) / num)

    @property
    def _observed(self) -> Any:
        """The process of observed data alone."""
        return observed_process(self.model)

    def check_points(self, name: str, X: Tensor) -> None:
        """Raise unless points ``... x d`` have the width and the precision of the model's inputs.

        The column of the output task of a multi-task model may be left out. Errors call the points
        ``name``.
        """
        if self._contexts is not None:
            X = self._contexts.check_decisions(name, X, self._observed)
        check_fits(self._observed, with_task_feature(self._observed, X), name)

    def _hold_together(
        self, several: list[Self], place: int, records: Iterable[Mapping[str, Any]]
    ) -> None:
        """Be one of several, new as well, and go on with its part of their records."""
        self._together, self._place = several, place
        self._records = checked_records(records, self._sides, self.level, len(several) > 1)
        self._check_records()

    def _warn_of_earlier_decisions(self) -> None:
        """Warn of decisions that a constraint without records does not know."""
        if have_decided(self._parts(), self._statement, self.known_decisions()):
            warnings.warn(
                "Decisions have been taken by this model or on these data, which a constraint that "
                "is made anew does not know: its violations count from zero. Go on by "
                "`with_model`, or by `ChanceConstraint.from_records(model, records, ...)` with the "
                "`decisions` of the earlier one.",
                CalibrationWarning,
                stacklevel=level_of_caller(),
            )

    def _check_records(self) -> None:
        """Raise unless the records are about points that the model decides about."""
        if (inputs := raw_train_inputs(self._observed)) is None:
            return
        lengths = [len(record["point"]) for record in self._records]
        for length in {*lengths} - {0}:  # unknown points count, and no outcome finds them
            name = f"records[{lengths.index(length)}]['point']"
            try:
                self.check_points(name, inputs.new_zeros(1, length))
            except BotorchTensorDimensionError as error:
                raise InputDataError(
                    f"{error} Give a `model` of the inputs that were decided about, or the "
                    "records of its own decisions."
                ) from error

    def _whole(self, point: list[float]) -> list[float]:
        """A decision with the column of the output task, which may be left out."""
        if self._contexts is not None or not isinstance(self._observed, MultiTaskGPyTorchModel):
            return point
        return with_task_feature(self._observed, torch.tensor(point, dtype=torch.double)).tolist()

    @torch.no_grad()
    def certified(self, X: Tensor) -> Tensor:
        """Whether each point of ``b x 1 x d`` is certified, ``b``, if it is the only one to come.

        Of several, and of `joint_chance_constraints`, `commit` says which ones are.
        """
        return self.margin(X) >= 0.0

    @property
    def num_contexts(self) -> int:
        """Number of contexts at which the outcome is predicted for each point; 1 without any."""
        return 1 if self._contexts is None else self._contexts.centre.num_points

    def known_decisions(self) -> Tensor | None:
        """Training inputs ``n x d`` before any transform, without contexts; None if not told."""
        if (inputs := raw_train_inputs(self._observed)) is None:
            return None
        inputs = inputs[(0,) * (inputs.dim() - 2)]  # which members of an ensemble share
        return inputs if self._contexts is None else self._contexts.decisions(inputs)

    @torch.no_grad()
    def typical_deviation(self) -> Tensor:
        """Standard deviation of an outcome, the mean over the training inputs (1 without any).

        A unit for comparing outcomes. It is constant, so margins keep their shape.
        """
        inputs = raw_train_inputs(self._observed)
        if inputs is None or inputs.shape[-2] == 0:
            return torch.ones(())
        return OutcomeQuantiles(self.model, inputs.unsqueeze(-2)).deviation.mean()

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

    # ------------------------------------------------------------ decisions and their outcomes

    @torch.no_grad()
    def commit(self, X: Tensor) -> Tensor:
        """Record the decision to evaluate points ``n x d``, by the present quantiles.

        Call it where outcomes come after other decisions: for several points at a time, or with
        several workers. `observe` does it for points whose decision was not recorded. Of
        `joint_chance_constraints` one records it for all.

        Returns:
            Whether each is certified, ``n``; while others are out the budget may not last for it.
        """
        return torch.tensor(self._recorded(self._decided(X)), dtype=torch.bool, device=X.device)

    @torch.no_grad()
    def observe(
        self, X: Tensor, Y: Tensor, Yvar: Tensor | None = None, condition: bool = True
    ) -> None:
        """Enter outcomes, and teach the model.

        A point whose decision was recorded by `commit`, up to rounding (a relative 1e-9), is judged
        by that; any other is committed to first. Outcomes of one point that was committed to
        several times belong to its decisions in their order, so tell each outcome once. A
        calibrated model's calibrator learns from all rows.

        Args:
            X: Points ``n x d``, in any order, with the contexts that came.
            Y: Their outcomes ``n x 1``.
            Yvar: Their noise variances ``n x 1``, for a model with given noise (default: the mean
                of its training noise). They condition the model and judge no outcome.
            condition: Whether to also condition the model on them.

        Raises:
            InputDataError, BotorchTensorDimensionError: If an argument is malformed.
            UnsupportedError: If the model cannot be conditioned.
        """
        check_flag("condition", condition)
        decisions = self._decisions_of(X)
        check_pairs(X, Y)
        check_precision("Y", Y, X.dtype)
        rows = self._out_at(decisions.tolist())
        is_new = torch.tensor([row is None for row in rows], dtype=torch.bool, device=X.device)
        decided = self._decided(decisions[is_new])
        taught = self._taught(X, Y, Yvar, condition)  # which may raise: nothing has changed yet
        self._recorded(decided)
        new = (records[self._place] for records in decided)
        for row, y in zip(rows, numbers_of(Y.squeeze(-1)), strict=True):
            (next(new) if row is None else row)["outcome"] = y
        self._forget_account()
        if taught is not self.model:
            self.model, self._factor = taught, None
        leave_traces(self._parts(), self._statement)

    def _decisions_of(self, X: Tensor) -> Tensor:
        """The checked decisions ``n x d_x`` among observed inputs: without contexts, all of it."""
        check_inputs("X", X)
        check_fits(self._observed, with_task_feature(self._observed, X))
        return X if self._contexts is None else self._contexts.decisions(X)

    def _decided(self, X: Tensor) -> list[list[Record]]:
        """Records of the decisions about ``n x d``: for each point one of each constraint."""
        self.check_points("X", check_inputs("X", X))
        if not len(X):
            return []
        stated = self._stated(X.unsqueeze(-2), self._present())
        inside = (torch.stack([each.margin for each in stated]) >= 0.0).all(dim=0).tolist()
        quantiles = [torch.stack(each.ends, dim=-1).tolist() for each in stated]
        levels = [[self.level] * len(X)]
        if len(stated) > 1:
            parts = [ndtr(-torch.stack(each.scores)).sum(dim=0) for each in stated]
            levels = [(1.0 - each).tolist() for each in parts]
        num, at_stake = self._at_stake()
        decided = []
        for row, point in enumerate(X.tolist()):
            certified = inside[row] and self._budget.allows(num, at_stake)
            num, at_stake = num + certified, at_stake + certified
            own = zip(quantiles, levels, strict=True)
            values = [(point, q[row], level[row], certified, None) for q, level in own]
            decided.append([dict(zip(KEYS, each, strict=True)) for each in values])
        return decided

    def _recorded(self, decided: list[list[Record]]) -> list[bool]:
        """Enter records of decisions, and leave traces of them; whether each was certified."""
        for records in decided:
            for each, record in zip(self._together, records, strict=True):
                each._records.append(record)
        self._forget_account()
        first = [records[0] for records in decided]
        leave_traces(self._parts(), self._statement, [record["point"] for record in first])
        return [record["certified"] for record in first]

    def _taught(self, X: Tensor, Y: Tensor, Yvar: Tensor | None, condition: bool) -> Any:
        """The model after observations; the calibrator of a calibrated one has learned."""
        if isinstance(self.model, CalibratedModel):
            self.model.observe(X, Y, Yvar, condition=condition)
        elif condition:
            observed = self._observed
            X, Y, Yvar = checked_observations(observed, X, Y, Yvar)
            if isinstance(self.model, CensoredDelayModel):  # keeps what is still pending
                return self.model.with_observations(X, Y, Yvar)
            return with_observations(self.model, X, Y, Yvar)
        return self.model

    @property
    def _statement(self) -> tuple[Any, ...]:
        return self.lower, self.upper, self.level

    def _parts(self) -> set[Any]:
        """What decides, and may decide again in another constraint."""
        return {self.model, self._observed, self.calibrator} - {None}


class _Stated(NamedTuple):
    """What one of the constraints that hold together states of points."""

    outcome: OutcomeQuantiles
    scores: list[Any]  # of each side, the normal score of its level: a number, or b
    ends: list[Tensor]  # of each side, the quantile that decides, b
    margin: Tensor  # b


def clearance(dtype: torch.dtype) -> float:
    """The margin, in standard deviations, from which on a search takes a point for certified.

    A posterior changes in the last digits with the other points it is evaluated at. A margin within
    these of 0 might be negative the next time.
    """
    return float(torch.finfo(dtype).eps) ** 0.5


def margins_of(
    constraints: Sequence[ChanceConstraint], X: Tensor, confidence: float | None = None
) -> list[Tensor]:
    """The margin of each, where those that hold together are predicted once."""
    groups: dict[int, list[ChanceConstraint]] = {}
    for each in constraints:
        groups.setdefault(id(each._together), [*each._together])[each._place] = each
    several = {key: group for key, group in groups.items() if len(group) > 1}
    margins = {key: group[0]._margins(X, confidence, group) for key, group in several.items()}
    places = [(id(each._together), each._place, each) for each in constraints]
    return [
        margins[key][place] if key in margins else each.margin(X, confidence)
        for key, place, each in places
    ]


def chance_constraints_of(
    constraints: ChanceConstraint | Iterable[ChanceConstraint], least: int = 1
) -> list[ChanceConstraint]:
    """``least`` or more constraints as a list, for which a single one may stand."""
    # PyTorch calls a tensor iterable that is a single number.
    is_list = isinstance(constraints, Iterable) and not isinstance(constraints, Tensor)
    several: list[Any] = [*constraints] if is_list else [constraints]  # type: ignore[misc]
    if len(several) < least:
        raise InputDataError("`constraints` must hold at least one ChanceConstraint.")
    return [check_instance("constraints", each, ChanceConstraint) for each in several]


def _checked_model(model: Any) -> Any:
    """``model``, or the only one of a list, if it states a distribution of single outcomes."""
    model = sole_member(check_model(model))
    if isinstance(model, CalibratedModel) and model.denoise:
        raise UnsupportedError(
            "`model` is denoised: it describes the objective behind the noise, while limits are "
            "met or not by outcomes. Make it with `denoise=False`."
        )
    if any(isinstance(part, CalibratedModel) for part in [*model.modules()][1:]):
        raise UnsupportedError(
            f"The model inside this {type(model).__name__} is calibrated: give that one itself, or "
            "the models of several outcomes to `joint_chance_constraints`."
        )
    check_process(observed_process(model))
    if batch_shape := batch_of_models(model):
        raise UnsupportedError(
            f"`model` must not be a batch of models, got batch shape {[*batch_shape]}."
        )
    return model
