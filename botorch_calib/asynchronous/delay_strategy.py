"""`DelayStrategy`: determines how a proposer handles pending and failed queries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from botorch.acquisition import AcquisitionFunction
from botorch.exceptions.errors import InputDataError

from botorch_calib._validation import check_count, check_nonnegative, check_one_of
from botorch_calib.acquisition.delayed import WINDOWS
from botorch_calib.ledger import FeedbackLedger, TrialStatus
from botorch_calib.models.delayed import IMPUTATIONS, CensoredDelayModel

ACQUISITIONS = ("ucb", "ts")
FAILURES = ("avoid", "impute", "ignore")


@dataclass(frozen=True)
class DelayStrategy:
    """How a `DelayAwareProposer` handles pending and failed queries.

    ============= ===========================================================================
    algorithm     strategy
    ============= ===========================================================================
    GP-UCB-SDF    ``DelayStrategy("ucb", max_censored=None)``; as published, ``window="all"``
    GP-TS-SDF     ``DelayStrategy("ts", max_censored=None)``; as published, ``window="all"``
    GP-BUCB       ``DelayStrategy("ucb", imputation="hallucinate", window=None)``
    GP-BTS        ``DelayStrategy("ts", imputation="hallucinate", window=None)``
    GP-UCB        ``DelayStrategy("ucb", imputation="none", window=None)``
    asy-TS        ``DelayStrategy("ts", imputation="none", window=None)``
    ============= ===========================================================================

    The SDF algorithms are from [Verma2022]_. GP-UCB and asy-TS ignore pending queries. None of the
    algorithms in the table handles failures: to run them as published, pass ``failures="ignore"``.

    Args:
        acquisition: ``"ucb"`` for `DelayedUpperConfidenceBound`, ``"ts"`` for
            `DelayedThompsonSampling`, or a function of the model and the ledger that returns an
            acquisition function for single points. In the ledger that the function gets, hanging
            queries (see ``failures``) have failed.
        imputation: Values that replace the missing values of pending queries: ``"censor"`` for the
            ledger's ``censor_value`` or, if it is None, the worst observed value;
            ``"hallucinate"`` for the posterior mean; ``"none"`` to ignore pending queries.
        window: Queries whose standard deviations are summed to widen the confidence region:
            ``"pending"`` for pending queries; ``"all"``, as published, for all queries of the last
            ``ledger.max_wait``; None: no widening.
        beta: Square of the multiplier of the posterior standard deviation in the confidence region,
            before widening.
        feedback_bound: Factor of the sum of standard deviations over the window, in reciprocal
            units of the outcome (default: one over the standard deviation of the observed values).
            The product is added to the multiplier.
        max_censored: Maximum number of pending queries with censored values (None, as in the paper:
            no limit). If more queries are pending, all of them are hallucinated without a window,
            because many censored values distort the whole model.
        failures: How failures affect the search. Failures are queries that have failed, and queries
            that have expired without being censored. A pending query counts as a failure while it
            hangs: more than ``W + 4 M`` queries that were submitted later have returned a value.
            ``W`` is the largest number of queries under evaluation at the same time since the
            submission. ``M`` is the largest number of later queries that any query with a value had
            to wait for. Failed queries are not repeated.

            ``"avoid"``: the search avoids regions that fail, by a model of the probability that a
            query returns a value. Pending queries near failures count partly as failures, so that
            one query at a time tries the border of a region. If queries near failures outnumber
            other queries by five, without a new best value, the next query is chosen as under
            ``spread_beyond``. If ``acquisition`` is a function, ``"avoid"`` means ``"impute"``.

            ``"impute"``: at failures, the model is conditioned on the worse of two values: its own
            prediction, and the mean of the observed values minus their standard deviation (plus, if
            the objective is minimized). Under a nonlinear outcome transform, this mean and this
            deviation are taken after the transform, and the result is transformed back.

            ``"ignore"``: failures have no effect. This is for failures unrelated to the query.
        spread_beyond: If more queries than this number are pending, every second query (a random
            half, if ``fixed_features`` is a function) is the next point of a scrambled Sobol
            sequence or, with ``choices``, a random choice that is not in the ledger (None: never).
            Otherwise many workers would evaluate the bounds of the box before the first values
            arrive. After failures, unless failures are ignored, the query is the point that is most
            likely to return a value among eight new points. The other half of the queries maximize
            a Thompson sample with ``beta=1`` instead of ``"ucb"``, if the model has pathwise draws,
            or joint draws at up to 2000 choices.

    Example:
        >>> propose = DelayAwareProposer(bounds, DelayStrategy("ts", "hallucinate", None))  # GP-BTS
    """

    acquisition: str | Callable[[CensoredDelayModel, FeedbackLedger], AcquisitionFunction] = "ucb"
    imputation: str = "censor"
    window: str | None = "pending"
    beta: float = 1.0
    feedback_bound: float | None = None
    max_censored: int | None = 10
    failures: str = "avoid"
    spread_beyond: int | None = None

    def __post_init__(self) -> None:
        if not callable(self.acquisition):
            check_one_of("acquisition", self.acquisition, ACQUISITIONS)
        check_one_of("imputation", self.imputation, IMPUTATIONS)
        check_one_of("window", self.window, WINDOWS)
        check_one_of("failures", self.failures, FAILURES)
        vars(self)["beta"] = check_nonnegative("beta", self.beta)
        if self.feedback_bound is not None:
            check_nonnegative("feedback_bound", self.feedback_bound)
        for name in ("max_censored", "spread_beyond"):
            if (limit := vars(self)[name]) is not None:
                vars(self)[name] = check_count(name, limit, 0)

    @property
    def lost_statuses(self) -> tuple[TrialStatus, ...]:
        """States of queries that count as failures: failed and, unless it is censored, expired."""
        is_censored = self.imputation == "censor"
        return (TrialStatus.FAILED,) if is_censored else (TrialStatus.FAILED, TrialStatus.EXPIRED)

    @property
    def imputes_failures(self) -> bool:
        """Whether the model is conditioned on imputed values of failed queries."""
        is_own = callable(self.acquisition)
        return self.failures == "impute" or (self.failures == "avoid" and is_own)

    def with_pending(self, num: int) -> DelayStrategy:
        """The strategy that applies while ``num`` queries are pending.

        Beyond ``max_censored`` it hallucinates values, and beyond ``spread_beyond`` it uses
        ``"ts"`` instead of ``"ucb"``.
        """
        strategy, limit = self, self.max_censored
        if self.imputation == "censor" and limit is not None and num > limit:
            strategy = replace(strategy, imputation="hallucinate", window=None)
        if strategy.acquisition == "ucb" and self.spreads(num):
            strategy = replace(strategy, acquisition="ts", beta=1.0)
        return strategy

    def spreads(self, num: int) -> bool:
        """Whether every second query is a space-filling point while ``num`` queries are pending."""
        return self.spread_beyond is not None and num > self.spread_beyond


# Up to this number of pending queries, confidence bounds did no worse than Thompson samples on
# tuning seeds. With more pending queries, the strategies below use Thompson samples and
# space-filling points.
FEW = 20

# The strategies that have a name. Hallucinated values make a model overconfident: with beta = 1,
# GP-BUCB misses the best of many peaks, so it gets a larger beta.
STRATEGIES = {
    "ucb": DelayStrategy("ucb", spread_beyond=FEW),
    "ts": DelayStrategy("ts", spread_beyond=FEW),
    "hallucinate": DelayStrategy("ucb", "hallucinate", window=None, beta=4.0, spread_beyond=FEW),
}


def strategy_of(strategy: str | DelayStrategy) -> DelayStrategy:
    """Return the strategy with the given name; return a `DelayStrategy` unchanged."""
    if isinstance(strategy, DelayStrategy):
        return strategy
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise InputDataError(
            f"`strategy` must be one of {tuple(STRATEGIES)} or a DelayStrategy, got {strategy!r}."
        )
    return STRATEGIES[strategy]
