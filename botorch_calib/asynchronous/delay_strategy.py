"""How a proposer takes account of queries that are still under evaluation, or that failed."""

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
    """How a `DelayAwareProposer` takes account of queries that are still under evaluation.

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

    [Verma2022]_ has the SDF algorithms. GP-UCB and asy-TS ignore pending queries. None of these
    algorithms knows of failures: pass ``failures="ignore"``.

    Args:
        acquisition: ``"ucb"`` for `DelayedUpperConfidenceBound`, ``"ts"`` for
            `DelayedThompsonSampling`, or a function of the model and the ledger, in which queries
            that hang have failed, that returns an acquisition function for single points.
        imputation: What replaces the values of pending queries: ``"censor"`` for the ledger's
            ``censor_value`` or, if it has none, the worst observed value; ``"hallucinate"`` for the
            posterior mean; ``"none"`` to ignore these queries.
        window: Queries whose standard deviations are summed to widen the confidence region:
            ``"pending"`` for those without a value; ``"all"``, as published, for all of the last
            ``ledger.max_wait``; None for none.
        beta: Factor of the posterior variance if nothing is pending, the square of the paper's.
        feedback_bound: Factor of the sum over the window, in reciprocal units of the outcome
            (default: one over the standard deviation of the observed values).
        max_censored: Number of pending queries beyond which they are hallucinated, without a
            window, as many censored values bend the model everywhere. None, as in the paper, for no
            limit.
        failures: What follows from failures: queries that failed, that expired without being
            censored or, for the time being, that hang, which more later queries have overtaken than
            ever before. A failed query is never repeated.

            ``"avoid"``: the search goes around regions that fail, by a model of where queries bring
            values. Pending queries near failures count as failures in part, so that one at a time
            tries the border of a region. Once borders have had five more queries than other places
            without a new best value, the next query is chosen as after ``spread_beyond``. With a
            function for ``acquisition`` it is ``"impute"``.

            ``"impute"``: the model of the objective takes its own predictions for their values, but
            none better than the mean of the observed values less their standard deviation.

            ``"ignore"``: nothing, for failures that have nothing to do with the query.
        spread_beyond: Number of pending queries beyond which every second query (at random, if
            ``fixed_features`` is a function) is the next point of a scrambled Sobol sequence or a
            random one of the ``choices`` that were not asked; None for no limit. It keeps many
            workers from the bounds of the box before the first values arrive. After failures that
            count, it is the one of eight such points that is the most likely to bring a value. The
            other queries maximize a draw with ``beta=1`` in place of ``"ucb"``, if the model has
            draws (pathwise ones, or joint ones of up to 2000 choices).

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
        """States of queries that bring no value: failed and, unless they are censored, expired."""
        is_censored = self.imputation == "censor"
        return (TrialStatus.FAILED,) if is_censored else (TrialStatus.FAILED, TrialStatus.EXPIRED)

    @property
    def imputes_failures(self) -> bool:
        """Whether failures have values to the model."""
        is_own = callable(self.acquisition)
        return self.failures == "impute" or (self.failures == "avoid" and is_own)

    def with_pending(self, num: int) -> DelayStrategy:
        """The strategy that applies while ``num`` queries are pending."""
        strategy, limit = self, self.max_censored
        if self.imputation == "censor" and limit is not None and num > limit:
            strategy = replace(strategy, imputation="hallucinate", window=None)
        if strategy.acquisition == "ucb" and self.spreads(num):
            strategy = replace(strategy, acquisition="ts", beta=1.0)
        return strategy

    def spreads(self, num: int) -> bool:
        """Whether every second query is a point of a design while ``num`` are pending."""
        return self.spread_beyond is not None and num > self.spread_beyond


# Up to so many pending queries bounds did at least as well as draws, on tuning seeds.
FEW = 20

# GP-BUCB widens its confidence region, as hallucinated values make the model too sure: with a
# multiplier of 1, in place of the 2 here, it misses the best of many peaks.
STRATEGIES = {
    "ucb": DelayStrategy("ucb", spread_beyond=FEW),
    "ts": DelayStrategy("ts", spread_beyond=FEW),
    "hallucinate": DelayStrategy("ucb", "hallucinate", window=None, beta=4.0, spread_beyond=FEW),
}


def strategy_of(strategy: str | DelayStrategy) -> DelayStrategy:
    """A strategy by its name, or the given one."""
    if isinstance(strategy, DelayStrategy):
        return strategy
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        raise InputDataError(
            f"`strategy` must be one of {tuple(STRATEGIES)} or a DelayStrategy, got {strategy!r}."
        )
    return STRATEGIES[strategy]
