r"""The budget of violations that a chance constraint may spend, by plain arithmetic.

The bound rests on the `Budget`; an `Account` sums up the outcomes of the decisions so far, and
`objective_coverage_bound` turns a bound for outcomes into one for the objective.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from typing import NamedTuple

from botorch.exceptions.errors import InputDataError

from botorch_calib._validation import check_nonnegative, check_open_unit

#: Violations allowed beyond the stated share of the certified rounds.
SIZE = 10.0
# The most rounds without a certified point that count as a relief, and the least excess: what good
# rounds may earn.
MOST_RELIEF, LEAST_EXCESS = 7, -2.0
#: The least share of violations that a level may leave, well above double precision's.
LEAST_SHARE = 1e-12


def check_level(level: float) -> float:
    """A level in (0, 1) that double precision tells from 1, and so do levels of its parts."""
    if check_open_unit("level", level) > 1.0 - LEAST_SHARE:
        raise InputDataError(
            f"`level` must be at most 1 - {LEAST_SHARE:g}, got {level!r}: beyond, quantiles of a "
            "predictive distribution mean nothing."
        )
    return float(level)


class Decision(NamedTuple):
    """The part of a decision that counts; None as long as its outcome is out."""

    certified: bool
    violated: bool | None  # a limit
    missed: bool | None  # the outcome was beyond the quantile that decided


class Account(NamedTuple):
    """A summary of decisions and their outcomes, whenever these came.

    Example:
        >>> decisions = [(True, False, False), (True, True, True)]  # certified, violated, missed
        >>> Account.of(decisions, share=0.1)
        Account(num_certified=2, num_violations=1, num_outstanding=0, excess=0.8, relief=0)
    """

    num_certified: int = 0  # T
    num_violations: int = 0  # V
    num_outstanding: int = 0  # certified, and no outcome yet
    excess: float = 0.0  # E, violations less the stated share of certified rounds
    relief: int = 0  # r / 0.1, by rounds without a certified point

    @classmethod
    def of(
        cls,
        decisions: Iterable[Decision],
        share: float,
        size: float = SIZE,
        least: float = LEAST_EXCESS,
    ) -> Account:
        """The account of decisions in the order in which they were taken.

        With a stated ``share`` of violations, a certified round adds ``1 - share`` to the excess if
        its outcome violated a limit, and takes off ``share`` if not, down to the ``least``. Another
        round takes off ``share`` if its outcome was no miss, as long as there is an excess, and
        adds to the relief while the excess is below half of the budget's ``size``.
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
    r"""How many violations a stated level leaves room for.

    With ``alpha = 1 - level``, ``V`` violations among the ``T`` points certified so far, and ``p``
    of these whose outcome is out, a point may be certified only while

        ``V + p - alpha T < size``.

    **Bound.** Of the first ``T`` certified points at most ``alpha T + size + level`` violate a
    limit, whatever the model, the choice of points and the environment do, in whatever order
    outcomes come, and if they never come.

    *Proof.* Let ``W_T`` be the number of violations among the first ``T`` points once all outcomes
    are known. When point ``T + 1`` was certified, ``W_T <= V + p < alpha T + size``, and so
    ``W_{T+1} <= W_T + 1 < alpha (T + 1) + size + level``.

    Args:
        level: Stated probability that a point violates nothing.
        size: Violations allowed beyond the stated share. Once they are spent, nothing is certified
            any more, for good.

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
        """``1 - level`` of the decimal number that was meant: rounding would add up."""
        return 1 - Fraction(repr(self.level))

    def allows(self, num_certified: int, num_at_stake: int) -> bool:
        """Whether another point may be certified, with ``V + p`` violations at stake."""
        return self.left(num_certified, num_at_stake) > 0

    def left(self, num_certified: int, num_at_stake: int) -> float:
        """What is left of the budget."""
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
    r"""Largest expected number of rounds with the *objective* beyond, from a bound on outcomes.

    Lemma 2 of LOCBO: let ``y = f + noise``, the noise independent, given the past and the point, of
    the interval that was stated there, with ``P(noise >= 0) >= b`` and ``P(noise <= 0) >= b``.
    Where ``f`` is above the upper end ``U``, ``y >= f > U`` with probability ``b`` at least, and
    likewise below the lower end. So outcomes are beyond at least ``b`` times as often, and

        ``E[rounds with f beyond] <= bound / b``

    for any bound on the rounds with ``y`` beyond: twice as many with a median of zero. It holds for
    stated intervals, whose ends bound ``f``, and for chance constraints, whose limits bound ``f``
    in certified rounds::

        objective_coverage_bound(constraint.violation_bound(T))
        objective_coverage_bound(T * (alpha + tracker.coverage_bound(T)))

    Denoised intervals, which are narrower, have no such bound.

    Args:
        observed_misses: Bound on the number, or the share, of rounds with the outcome beyond.
        sign_probability: ``b``, in (0, 1); 1/2 for noise with a median of zero.

    Example:
        >>> objective_coverage_bound(constraint.violation_bound(100))
        41.8
    """
    misses = check_nonnegative("observed_misses", observed_misses)
    return misses / check_open_unit("sign_probability", sign_probability)
