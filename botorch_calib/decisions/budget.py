"""The budget of violations that a chance constraint may spend."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple, Self

from botorch.exceptions.errors import InputDataError

from botorch_calib._validation import check_nonnegative, check_open_unit

#: The default budget: violations allowed in excess of the share ``1 - level`` of certified points.
SIZE = 10.0
# The relief of an `Account` is capped at `MOST_RELIEF` (counted in uncertified rounds). Its excess
# is kept at or above `LEAST_EXCESS` (counted in violations); otherwise many rounds without a
# violation would make the quantiles too narrow.
MOST_RELIEF, LEAST_EXCESS = 7, -2.0
#: The smallest allowed ``1 - level``, well above the rounding of doubles.
LEAST_SHARE = 1e-12


def check_level(level: float) -> float:
    """Return ``level`` as a float; raise if it is not in (0, 1), or too close to 1 for doubles."""
    checked = check_open_unit("level", level)
    if checked > 1.0 - LEAST_SHARE:
        raise InputDataError(
            f"`level` must be at most 1 - {LEAST_SHARE:g}, got {level!r}: quantiles of a "
            "predictive distribution are meaningless beyond."
        )
    return checked


class Decision(NamedTuple):
    """A decision in an `Account`; ``violated`` and ``missed`` are None while they are unknown."""

    certified: bool
    violated: bool | None  # whether the outcome violated a limit
    missed: bool | None  # whether the outcome was beyond the deciding quantile


class Account(NamedTuple):
    """A summary of decisions and outcomes, which does not depend on when the outcomes arrived.

    The deciding quantiles become wider with ``excess``, and narrower with ``relief``; see `of`.

    Example:
        >>> decisions = [(True, False, False), (True, True, True)]  # certified, violated, missed
        >>> Account.of(decisions, share=0.1)
        Account(num_certified=2, num_violations=1, num_outstanding=0, excess=0.8, relief=0)
    """

    num_certified: int = 0
    num_violations: int = 0  # among the certified points
    num_outstanding: int = 0  # certified points that may still turn out to be violations
    excess: float = 0.0  # violations minus the stated share of certified rounds, with a floor
    relief: int = 0  # increases in rounds without a certified point

    @classmethod
    def of(
        cls,
        decisions: Iterable[Decision],
        share: float,
        size: float = SIZE,
        least: float = LEAST_EXCESS,
    ) -> Self:
        """Return the account of ``decisions``, which must be in the order they were made.

        Let ``share`` be the stated share of violations, ``1 - level``, and ``size`` the
        budget. A certified round adds ``1 - share`` to the excess if the outcome violated a limit,
        and subtracts ``share`` if the outcome did not, down to ``least``. An uncertified round
        subtracts ``share`` from a positive excess, down to 0, if the outcome was within the
        deciding quantile. The relief increases by 1, up to 7, in an uncertified round while the
        excess is below ``size / 2``, and decreases by 1, down to 0, in a certified round.
        """
        T = V = outstanding = relief = 0
        excess = 0.0
        for certified, violated, missed in decisions:
            if certified:
                T, V, outstanding = T + 1, V + bool(violated), outstanding + (violated is None)
                relief = max(relief - 1, 0)
                excess += 0.0 if violated is None else violated - share
                excess = max(excess, least)
            else:
                relief = min(relief + 1, MOST_RELIEF) if excess < size / 2 else relief
                if missed is False and excess > 0.0:
                    excess = max(excess - share, 0.0)
        return cls(T, V, outstanding, excess, relief)


class Budget(NamedTuple):
    r"""The number of violations that a stated level allows.

    Let ``alpha = 1 - level``. With ``V`` violations and ``p`` pending outcomes among the ``T``
    points certified so far, another point may be certified only while

        ``V + p - alpha T < size``.

    **Bound.** At most ``alpha T + size + level`` of the first ``T`` certified points violate a
    limit, for any model, choice of points and environment. Outcomes may come in any order or never.

    *Proof.* Let ``W_T`` be the number of violations among the first ``T`` points once all outcomes
    are known. When point ``T + 1`` was certified, ``W_T <= V + p < alpha T + size``. So
    ``W_{T+1} <= W_T + 1 < alpha (T + 1) + size + level``.

    Args:
        level: Stated probability, in (0, 1), that a point violates no limit.
        size: The budget, the number of violations allowed beyond the stated share ``alpha T``. Once
            the budget is spent, no further point is certified.

    Example:
        >>> budget = Budget(level=0.9)
        >>> budget.allows(num_certified=100, num_at_stake=15)
        True
        >>> budget.bound(num_certified=100)
        20.9
    """

    level: float
    size: float = SIZE

    @property
    def _share(self) -> Fraction:
        """``1 - level`` as an exact decimal fraction, since rounding errors would accumulate."""
        return 1 - Fraction(repr(self.level))

    def allows(self, num_certified: int, num_at_stake: int) -> bool:
        """Whether another point may be certified; ``num_at_stake`` is the class's ``V + p``."""
        return self.left(num_certified, num_at_stake) > 0

    def left(self, num_certified: int, num_at_stake: int) -> float:
        """The remaining budget, ``size - num_at_stake + alpha num_certified`` (see the class)."""
        if math.isinf(self.size):
            return self.size
        return float(Fraction(self.size) - num_at_stake + self._share * num_certified)

    def bound(self, num_certified: int) -> float:
        """Largest number of violations among the first ``num_certified`` certified points."""
        if math.isinf(self.size):
            return float(num_certified)
        room = self._share * (num_certified - 1) + Fraction(self.size) + 1
        return min(float(room), float(num_certified))


def objective_coverage_bound(observed_misses: float, sign_probability: float = 0.5) -> float:
    r"""Bound the expected number of rounds with the *objective* outside the stated interval.

    This is Lemma 2 of LOCBO (Kim et al., 2024). Let ``f`` be the noise-free objective and
    ``y = f + noise`` the outcome, with ``P(noise >= 0) >= b`` and ``P(noise <= 0) >= b``. Let the
    noise be independent of the stated interval, given the past and the point. If ``f`` is above the
    upper end ``U``, then ``y >= f > U`` with probability at least ``b``; the same holds for the
    lower end. So

        ``E[rounds with f outside] <= observed_misses / b``

    for any bound ``observed_misses`` on the expected number of rounds with ``y`` outside. The lemma
    applies to the limits of a chance constraint in ``T`` certified rounds, and to ``T`` intervals
    with miscoverage ``alpha`` from an `OnlineQuantileTracker`::

        objective_coverage_bound(constraint.violation_bound(T))
        objective_coverage_bound(T * (alpha + tracker.coverage_bound(T)))

    It does not apply to denoised intervals, which are narrower.

    Args:
        observed_misses: Bound on the number or share of rounds with outcomes outside the interval.
        sign_probability: ``b``, in (0, 1); 1/2 for noise with a median of zero.

    Example:
        >>> objective_coverage_bound(constraint.violation_bound(100))
        41.8
    """
    misses = check_nonnegative("observed_misses", observed_misses)
    return misses / check_open_unit("sign_probability", sign_probability)
