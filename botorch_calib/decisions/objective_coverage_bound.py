"""`objective_coverage_bound`: a bound for the objective, from one for its noisy outcomes."""

from __future__ import annotations

from botorch_calib._validation import check_nonnegative, check_open_unit


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
