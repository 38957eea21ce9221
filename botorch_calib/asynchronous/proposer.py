"""`DelayAwareProposer`: chooses the next query, given a ledger of the queries so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import BotorchTensorDimensionError, InputDataError, UnsupportedError
from botorch.exceptions.warnings import InputDataWarning
from botorch.models.model import Model
from botorch.optim import optimize_acqf_discrete
from torch import Tensor

from botorch_calib._validation import (
    check_array,
    check_callable,
    check_count,
    check_finite,
    check_fixed_features,
    check_flag,
    check_instance,
)
from botorch_calib.acquisition.delayed import DelayedUpperConfidenceBound
from botorch_calib.acquisition.thompson import DelayedThompsonSampling
from botorch_calib.asynchronous.delay_strategy import DelayStrategy, strategy_of
from botorch_calib.asynchronous.designs import Design, with_features
from botorch_calib.asynchronous.failed_queries import (
    FeasibleAcquisition,
    borders_are_overdrawn,
    feasibility_of,
    have_failed,
    poor_value,
    queries_in,
    with_hanging_failed,
)
from botorch_calib.asynchronous.refits import LedgerModel, WarmStartedFit, check_refit_every
from botorch_calib.exceptions import warn
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.models import CensoredDelayModel
from botorch_calib.models.delayed import Fit
from botorch_calib.models.matching_rows import is_any_of
from botorch_calib.models.outcome_transforms import outcome_map_of
from botorch_calib.models.process import like, predicting_process
from botorch_calib.optim.random_seeds import derived_seed, random_stream
from botorch_calib.optim.region import LinearConstraints, Region
from botorch_calib.optim.scaled_search import optimize_in_unit_box
from botorch_calib.posteriors.outcome_maps import Affine

Features = Mapping[int, float]

# Purposes of random numbers. The seed, a purpose and, for most purposes, the number of queries or
# values so far determine the random numbers.
DESIGN, FIT, SEARCH, DRAW, AGAIN, SPREAD, TURN = range(7)

# A Thompson sample at `choices` is a joint draw at all choices, whose cost is cubic. With more
# choices than this, a function on the whole box is drawn instead, unless the user has requested
# Thompson sampling, by ``strategy="ts"``.
MOST_JOINT = 2000


@dataclass(frozen=True)
class SearchSettings:
    """How a `DelayAwareProposer` maximizes its acquisition function over the box.

    Args:
        num_restarts: Number of starting points of the gradient-based search.
        raw_samples: Number of points from which the starting points are chosen, at least
            ``num_restarts``.
        seed: Seed of all random numbers of the proposer, including its initial design and its fits.
            Torch's global random state is neither used nor changed.

    Example:
        >>> propose = DelayAwareProposer(bounds, search=SearchSettings(num_restarts=4, seed=1))
    """

    num_restarts: int = 10
    raw_samples: int = 256
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"num_restarts": 1, "raw_samples": self.num_restarts, "seed": 0}
        for name, smallest in least.items():
            vars(self)[name] = check_count(name, vars(self)[name], smallest)


class DelayAwareProposer:
    """Chooses the next query while other queries are pending.

    A proposer fits a model to the values in a ledger, conditions it on the pending queries, and
    maximizes an acquisition function. The result depends only on the ledger and the arguments: an
    interrupted run continues as if it had never stopped.

    Until the ledger has ``num_initial`` queries and two values, queries are scrambled Sobol points
    or, with ``choices``, choices in random order, which are repeated only if none is new. Later
    queries are such points, away from failures, as long as all values are equal: a model of equal
    values would repeat the corners of the box.

    Args:
        bounds: The box, ``2 x d``, as a tensor or as lists: lower bounds, then upper bounds. The
            model of the default ``fit`` is on the device of the tensor; a GPU is faster from about
            two thousand values on. Queries and values are on the CPU.
        strategy: How pending and failed queries are handled: ``"hallucinate"`` for GP-BUCB with
            ``beta=4``, ``"ucb"`` for GP-UCB-SDF, ``"ts"`` for GP-TS-SDF, each with
            ``spread_beyond=20``; or a `DelayStrategy` (see its table).
        fit: A function of ``X`` (``n x d``) and ``Y`` (``n x 1``), in order of arrival, that
            returns a fitted model, in any precision, calibrated or not. If the function has a
            parameter ``Yvar`` and the ledger has noise variances, it gets these too (``n x 1``, NaN
            if unknown). The default fits a ``SingleTaskGP`` with normalized inputs and standardized
            outcomes, and uses ``Yvar``. With at least 500 values, its search for hyperparameters
            starts from the result for about the first half of the values.
        num_initial: Least number of queries that are chosen without a model (default: ``2 d + 1``).
        choices: Candidate points that replace the box, ``n x d``, as a tensor or as lists.
        fixed_features: Values, by column, of features that are given rather than chosen, such as a
            context; or a function of the ledger that returns these values. They may be outside of
            the box. They replace the values in these columns of ``choices``.
        search: Settings of the search, and the seed (default: ``SearchSettings()``).
        maximize: Whether the objective is maximized (default: the ledger's ``maximize``). The
            ledger records it on the first call.
        refit_every: Number of values from one fit to the next (an integer), or the factor above 1
            by which the number of values grows between fits (a float). In between, the model is
            conditioned on later values. The default fits after each value up to 20, and after every
            hundredth value at 1000.
        inequality_constraints: Linear constraints on all queries, including fixed features, in the
            format of ``optimize_acqf``. ``choices`` that violate a constraint are left out.

    Raises:
        InputDataError, BotorchTensorDimensionError: If an argument is malformed.

    Example:
        >>> propose = DelayAwareProposer([[0, 0], [1, 1]])
        >>> trial_id = ledger.submit(propose(ledger))
    """

    def __init__(
        self,
        bounds: Tensor | Sequence[Sequence[float]],
        strategy: str | DelayStrategy = "hallucinate",
        fit: Fit | None = None,
        num_initial: int | None = None,
        choices: Tensor | Sequence[Sequence[float]] | None = None,
        fixed_features: Features | Callable[[FeedbackLedger], Features] | None = None,
        search: SearchSettings | None = None,
        maximize: bool | None = None,
        refit_every: int | float = 1.1,
        inequality_constraints: LinearConstraints | None = None,
    ) -> None:
        self.bounds = _checked_bounds(bounds)
        self.device = bounds.device if isinstance(bounds, Tensor) else torch.device("cpu")
        self.dim = self.bounds.shape[-1]
        self.strategy = strategy_of(strategy)
        self.num_initial = 2 * self.dim + 1
        if num_initial is not None:
            self.num_initial = check_count("num_initial", num_initial, 0)
        self.choices = None
        if choices is not None:
            self.choices = torch.from_numpy(check_array("choices", choices, (None, self.dim)))
            if not len(self.choices):
                raise InputDataError("`choices` holds no points.")
        self.region = Region.checked(self.bounds, None, inequality_constraints)
        self.fixed_features = fixed_features
        if not callable(fixed_features):
            check_fixed_features(fixed_features, self.dim)
        search = SearchSettings() if search is None else search
        self.search = check_instance("search", search, SearchSettings)
        self.maximize = None if maximize is None else check_flag("maximize", maximize)
        self.refit_every = check_refit_every(refit_every)
        check_callable("fit", fit, "a function of `X` and `Y`")
        if fit is None:
            on_device = self.bounds.to(self.device)
            fit = WarmStartedFit(on_device, self.refit_every, self.search.seed)
        stream = self.search.seed, FIT
        self._ledger_model = LedgerModel(fit, self.refit_every, self.device, stream)

    def __call__(self, ledger: FeedbackLedger) -> Tensor:
        """Return the next query, given a ledger of the queries so far.

        If the argument ``maximize`` of the proposer is not None, the ledger records it. Otherwise
        the ledger is only read: the query is not recorded.

        Returns:
            A point of the box or of ``choices``, including fixed features: a vector of length
            ``d`` in double precision on the CPU.

        Raises:
            BotorchTensorDimensionError: If the ledger's queries do not have ``d`` features.
            InputDataError: If the ledger contradicts ``maximize``, ``fixed_features`` returns
                malformed features, all ``choices`` have failed or violate linear constraints, or
                the variance of the values overflows.
            InfeasibilityError: If no point of the box meets the linear constraints.

        Warns:
            InputDataWarning: If no query with a value is in the box (with ``choices``: if no choice
                is in the box); if the ledger's ``censor_value`` is better than all observed values;
                or if ``fit`` does not use the known noise variances.
        """
        if check_instance("ledger", ledger, FeedbackLedger).dim != self.dim:
            raise BotorchTensorDimensionError(
                f"The queries of `ledger` have {ledger.dim} features, and `bounds` is for "
                f"{self.dim}: give the bounds of these features, or begin a new ledger."
            )
        if self.maximize is not None:
            ledger.declare(self.maximize)
        ledger = ledger.snapshot()  # other threads may write to the ledger
        now, count = ledger.now(), len(ledger)
        given = self.fixed_features
        fixed = check_fixed_features(given(ledger) if callable(given) else given, self.dim)
        failed = queries_in(ledger, now, TrialStatus.FAILED)
        choices = self._choices_left(fixed, failed)
        _, Y = ledger.to_observations(now)
        if count < self.num_initial or len(Y) < 2:
            return self._design(DESIGN, fixed, choices).next_point(count, ledger.queries())
        self._check_data(ledger, now, fixed)
        if self.strategy.failures != "ignore":
            ledger = with_hanging_failed(ledger, now)
        num_pending = len(ledger.pending(now))
        strategy = self.strategy.with_pending(num_pending)
        place = self._place_among_spread(count) if strategy.spreads(num_pending) else None
        if (Y == Y[0]).all():  # the values do not say where to search
            place = count
        feasibility = None
        if place is not None or not strategy.imputes_failures:
            feasibility = feasibility_of(ledger, now, strategy, self.bounds)
        avoided = feasibility if place is None else None
        if avoided and self._leaves_borders(ledger, now, strategy):
            place = count
        if place is not None:
            design, asked = self._design(SPREAD, fixed, choices), ledger.queries()
            spread = design.new_point(place, asked, feasibility)
            # If failures are all over the box, every point is near a failure. Then no point of the
            # design keeps away from failures, and the model chooses the query.
            if spread is not None and not (avoided and avoided.are_at_border(spread[None])):
                return spread
        model = self._ledger_model(ledger, now, strategy)
        seed = derived_seed(self.search.seed, SEARCH, count)
        with random_stream(seed, like(model, self.bounds).device):
            acqf = self._acquisition_function(model, ledger, now, choices, strategy)
            if feasibility is not None and not strategy.imputes_failures:
                acqf = FeasibleAcquisition(acqf, model, feasibility, poor_value(ledger, now))
            return self._maximizer(acqf, model, choices, fixed, failed)

    def _design(self, stream: int, fixed: Mapping[int, float], choices: Tensor | None) -> Design:
        seed = derived_seed(self.search.seed, stream)
        return Design(self.bounds, seed, fixed, choices, self.region.linear)

    def _choices_left(self, fixed: Features, failed: Tensor) -> Tensor | None:
        """The choices ``n x d`` that meet the constraints and have not failed; None for a box.

        The choices have the values of ``fixed``; ``failed``, ``m x d``, has the failed queries.
        """
        if self.choices is None:
            return None
        choices = with_features(self.choices, fixed).unique(dim=0) if fixed else self.choices
        choices = choices[self.region.allows(choices.unsqueeze(-2))]
        left = choices[~is_any_of(choices, failed)]
        if not len(left):
            raise InputDataError(
                "All `choices` have failed or violate linear constraints: add other choices, or "
                "start a new ledger if they work now."
            )
        return left

    def _leaves_borders(self, ledger: FeedbackLedger, now: float, strategy: DelayStrategy) -> bool:
        """Whether the next query must be a point of the design away from failures, if possible."""
        return borders_are_overdrawn(ledger, now, strategy, self.bounds)

    def _place_among_spread(self, count: int) -> int | None:
        """The index in the space-filling design of query number ``count``.

        It is None for the other half of the queries, which the model chooses.
        """
        if not callable(self.fixed_features):
            return None if count % 2 else count // 2
        # The turn is random: if two contexts alternated, every second query would have the same
        # context, so the design would have points in one context only.
        is_spread = derived_seed(self.search.seed, TURN, count) % 2 == 0
        return count if is_spread else None

    def _check_data(self, ledger: FeedbackLedger, now: float, fixed: Mapping[int, float]) -> None:
        """Raise if the variance of the values overflows; warn if no point is within the bounds.

        The points are the choices or, without choices, the queries with values by ``now``. Columns
        in ``fixed`` may be out of bounds.
        """
        X, Y = ledger.to_observations(now)
        if not torch.isfinite(Y.var()):
            worst = max(ledger.trials_at(now), key=lambda trial: abs(trial.y or 0.0))
            raise InputDataError(
                f"The values of the ledger, such as {worst.y:g} of trial {worst.id}, are too large "
                "to compute their variance. If such values mark failures, `amend` them, and let "
                "the objective raise an exception instead; otherwise scale all values."
            )
        points, which = X, f"the {len(X)} queries in the ledger that have values"
        if self.choices is not None:
            points, which = self.choices, f"the {len(self.choices)} `choices`"
        inside = (points >= self.bounds[0]) & (points <= self.bounds[1])
        inside[:, [*fixed]] = True
        if not inside.all(dim=-1).any():
            warn(
                f"None of {which} lies in `bounds`, by which the model measures distances. Are "
                "they in other units, or from another problem?",
                InputDataWarning,
            )

    def _acquisition_function(
        self,
        model: CensoredDelayModel,
        ledger: FeedbackLedger,
        now: float,
        choices: Tensor | None,
        strategy: DelayStrategy,
    ) -> AcquisitionFunction:
        if callable(strategy.acquisition):
            acqf = strategy.acquisition(model, ledger)
            if not callable(acqf):
                raise InputDataError(
                    f"`acquisition` must return an acquisition function, got {type(acqf).__name__}."
                )
            return acqf
        arguments: dict[str, Any] = {
            "window": strategy.window,
            "now": now,
            "beta": strategy.beta,
            "feedback_bound": self.strategy.feedback_bound,
            "maximize": ledger.maximize,
        }
        if self.strategy.feedback_bound is None:
            scale = ledger.to_observations(now)[1].std().item()
            arguments["feedback_bound"] = 1.0 / scale if scale > 0.0 else 1.0
        bound = partial(DelayedUpperConfidenceBound.from_ledger, model, ledger, **arguments)
        if strategy.acquisition == "ucb":
            return bound()
        is_asked_for = self.strategy.acquisition == "ts"
        if not is_asked_for and choices is not None and len(choices) > MOST_JOINT:
            choices = None  # draw a function on the box instead
        seed = derived_seed(self.search.seed, DRAW, len(ledger))
        try:
            return DelayedThompsonSampling.from_ledger(
                model, ledger, choices=choices, seed=seed, **arguments
            )
        except UnsupportedError:
            if is_asked_for:
                raise
            return bound(beta=self.strategy.beta)

    def _maximizer(
        self,
        acqf: AcquisitionFunction,
        model: CensoredDelayModel,
        choices: Tensor | None,
        fixed: dict[int, float],
        failed: Tensor,
    ) -> Tensor:
        """The maximizer, of shape ``d``, of ``acqf`` over ``choices`` or, if None, over the box.

        In the box, a maximizer that violates constraints or repeats a query of ``failed``,
        ``m x d``, is replaced with the best point of a Sobol sample.
        """
        if choices is not None:
            return _best_of(choices, acqf, model)
        box, linear = like(model, self.bounds), self.region.linear
        # The unit of a user's acquisition function is unknown, so the search determines it from the
        # spread of the function's values.
        is_own = callable(self.strategy.acquisition)
        candidate, _ = optimize_in_unit_box(
            acqf,
            box,
            unit=None if is_own else _unit_of_targets(model, box),
            num_restarts=self.search.num_restarts,
            raw_samples=self.search.raw_samples,
            fixed_features=fixed,
            linear=linear and [(i.to(box.device), c.to(box), rhs) for i, c, rhs in linear],
        )
        # The search is in the model's precision. Bounds rounded to single precision may lie outside
        # of the box, so the result is clamped to the box.
        point = candidate.squeeze(0).to(self.bounds).clamp(self.bounds[0], self.bounds[1])
        point = with_features(point, fixed)
        # SLSQP may return a point that violates the linear constraints.
        is_out = not self.region.allows(point.view(1, 1, -1))
        if (is_out or have_failed(point, failed, self.bounds)) and len(fixed) < self.dim:
            # Take the best point of a Sobol sample, which has a spare point for each failed query.
            points = self._design(AGAIN, fixed, None).sample(self.search.raw_samples + len(failed))
            point = _best_of(points[~have_failed(points, failed, self.bounds)], acqf, model)
        return point


def _unit_of_targets(model: Model, box: Tensor) -> Tensor:
    """The scale factor from the model's training targets to outcomes, a scalar; 1 if unknown."""
    outcome_map, one = outcome_map_of(predicting_process(model)), box.new_ones(())
    unit = outcome_map.scaled(one) if isinstance(outcome_map, Affine) else one
    return unit.detach().reshape(()).to(box) if unit.numel() == 1 else one


def _best_of(choices: Tensor, acqf: AcquisitionFunction, model: Model) -> Tensor:
    """The row of ``choices``, ``n x d``, that maximizes ``acqf``.

    ``acqf`` is evaluated in the model's precision. The result, of shape ``d``, is not rounded.
    """
    rows = like(model, choices)
    best, _ = optimize_acqf_discrete(acqf, q=1, choices=rows)
    return choices[int((rows == best).all(dim=-1).nonzero()[0])].clone()


def _checked_bounds(bounds: object) -> Tensor:
    box = torch.from_numpy(check_array("bounds", bounds, (2, None)))
    widths = check_finite("bounds[1] - bounds[0]", box.diff(dim=0))
    if not widths.numel() or (widths <= 0).any():
        raise InputDataError(
            "`bounds` must have a row of lower bounds and a row of greater upper bounds, such as "
            "[[0, 0], [1, 1]] for two features between 0 and 1. To fix a feature, pass "
            "`fixed_features`, with bounds that differ."
        )
    return box
