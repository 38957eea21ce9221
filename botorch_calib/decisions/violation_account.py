"""`ViolationAccount`: the counts that the bound on a chance constraint's violations rests on.

Limits, model and tracker are those of a `ChanceConstraint`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from botorch.exceptions.errors import UnsupportedError
from torch import Tensor

#: Default of ``integral_gain``: how fast an excess of misses is made up for.
INTEGRAL_GAIN = 0.05
# The rate of misses aimed at meanwhile differs from the stated one by at most this share of it, so
# that a long safe past allows no spell of violations, and a few violations do not shut everything.
_LEEWAY = 0.5
#: Number of rounds in a row without a certified point after which such rounds teach as well.
PATIENCE = 3
# Decimals of the bound on a number of violations; rounding leaves the integers within it alone.
_DECIMALS = 5


@dataclass(frozen=True)
class TrackerStart:
    """The tracker as it was when the account was opened.

    Args:
        num_updates: Observations that it had learned from.
        lowest: Lower end, for each of the ``s`` sides, of the interval that its constant stays in
            if it learns from one point at a time.
        highest: Upper end.
    """

    num_updates: int
    lowest: list[float]
    highest: list[float]


class TrackerState(NamedTuple):
    """The present tracker: its constant for each side, its next step and its first, largest one."""

    constants: list[float]
    next_step: float
    first_step: float


@dataclass
class Counts:
    """Numbers of events since the account was opened."""

    violations: list[int]  # of certified points, for each side
    misses: list[int]  # outcomes of certified points beyond the deciding quantile, for each side
    num_observed: int = 0
    num_certified: int = 0
    num_violations: int = 0
    num_rounds: int = 0
    num_idle: int = 0  # rounds in a row without a certified point
    largest_batch: int = 1  # most points that the tracker has learned from in one round


class ViolationAccount:
    r"""Keeps violations within ``(1 - level) T + (1 + eta) / eta`` of ``T`` certified points.

    Whatever happens: that is what a `ChanceConstraint` guarantees (one limit, one point a round,
    constant step ``eta``, no localization).

    *Proof*, at an upper limit. Let ``p = level``, ``q_t`` the learned quantile, ``c_t`` the
    tracker's constant in front of round ``t``, and ``o_t = 1`` if ``y_t <= q_t(x_t)``, a hit,
    else 0, a miss. What teaches moves the constant by ``eta (p - o_t)``. It rises only after a
    miss, where the threshold is less than 1, and falls only after a hit, where that is at least 0:
    so it stays in an interval ``[a, b]``, of length ``1 + eta`` unless it starts outside of that
    (`OnlineQuantileTracker.reach`). In a certified round ``q_t(x_t) <= upper``, so a violation
    ``y_t > upper`` is a miss. It is learned as one whatever the last digits say; the threshold is
    less than 1 then, since a quantile at its cap certifies nothing. Let ``V`` be the number of
    violations among the ``T`` certified rounds so far. Then always

        ``V <= (1 - p) T + (c - a) / eta``.

    It holds at the start, where ``V = T = 0`` and ``c >= a``, whatever the start is: a warm start
    from history costs nothing. A certified hit adds ``1 - p`` to the first term on the right and
    takes it off the second. A certified miss adds ``1 - p`` to the first and ``p`` to the second,
    1 in all, and at most 1 to ``V``. An uncertified round that teaches moves the second term alone:
    a miss adds ``p`` to it, a hit takes ``1 - p`` off it. So it is let teach only where the
    inequality holds with ``1 - p`` to spare, whatever it brings. Since ``c <= b``, the bound
    follows. At a lower limit the tracked level is ``1 - p``, violations are hits, and the term is
    ``(b - c) / eta``.

    *Rounds without a certified point* teach nothing at first, so that decisions are judged by
    decisions alone. But a threshold that has risen too far for any point to be certified could then
    never come back. So from the fourth such round in a row on they teach as well, as long as there
    is something to spare (under two limits, on both sides), that is ``(1 - p) T + (c - a) / eta -
    V``. It is spent on uncertified hits, and earned by uncertified misses and by those certified
    misses that violate nothing. It is used up only where outcomes have violated the limit more
    often than stated, by about ``(c - a) / eta`` times; what is not certified then stays so, since
    nothing else keeps the bound.

    *Several points in a round*, ``n`` of them, are compared with the same threshold, and the
    interval is longer by ``(n - 1) eta``. *Localized*, ``c`` is the constant under a local part
    that is at most ``G`` in size, and the interval is longer by ``2 G``. *With shrinking steps*,
    ``eta`` in the inequality is the latest step: as ``c >= a``, a smaller one only adds to its
    right side. Steps are numbered by the certified points alone, and in an uncertified round one
    point at most teaches, so that ``eta`` never grows. A calibrator without a bound has nothing to
    keep: there one point of each such round teaches.

    **What learning has cost is made up for.** With a tracker alone the number ``M`` of misses in
    the certified rounds is about ``(1 - p) T + (c - c_1) / eta``: where the model's quantile is
    wrong, so that the constant has to move, the misses on the way there stay in excess for good,
    two or three of them by default. So after each round with a certified point the constant also
    moves by

        ``eta min(max(integral_gain (M - (1 - p) T), -(1 - p) / 2), (1 - p) / 2)``,

    never out of ``[a, b]``: until the books are balanced, the rate aimed at is up to half lower,
    or up to half higher, than ``1 - p``. It is the integral term of control theory, see
    Angelopoulos, Candes & Tibshirani (2023, Conformal PID control for time series prediction).
    Misses are counted, not violations, so that rounds well inside the limit, where a miss violates
    nothing, are no credit for later ones at the border. The proof stands: where ``M > (1 - p) T``
    it raises the constant, which only adds to the right side of the inequality; elsewhere ``V <= M
    <= (1 - p) T``, and it holds by its first term alone, as ``c >= a``. (With several points in a
    round ``a`` is the end of the longer interval.) What the constant moves by here answers to no
    outcome, so that `OnlineQuantileTracker.coverage_bound` is no bound on this tracker's misses.

    Args:
        share: The share of violations that is allowed on each side, ``1 - p`` of the proof.
        signs: 1 at an upper limit and -1 at a lower one, for each of the ``s`` sides.
        start: The tracker as it is now; None if there is no bound to keep.
    """

    def __init__(
        self, share: float, signs: Sequence[float], start: TrackerStart | None = None
    ) -> None:
        self.share = share
        self.signs = list(signs)
        self.start = start
        self.counts = Counts(violations=[0] * len(self.signs), misses=[0] * len(self.signs))

    def record(self, violated: Tensor, missed: Tensor, num_certified: int, num_taught: int) -> None:
        """Enter a round of ``n`` points, of which the tracker has learned from ``num_taught``.

        ``violated`` and ``missed``, ``n x s``: whether a certified point violated the limit of each
        side, and whether it was beyond the deciding quantile.
        """
        counts = self.counts
        counts.num_rounds += 1
        counts.largest_batch = max(counts.largest_batch, num_taught)
        counts.num_observed += len(violated)
        counts.num_certified += num_certified
        counts.num_violations += int(violated.any(dim=-1).sum())
        counts.violations = _sums(counts.violations, violated)
        counts.misses = _sums(counts.misses, missed)
        counts.num_idle = 0 if num_certified else counts.num_idle + 1

    def num_idle_teachers(self, num_rows: int, tracker: TrackerState | None = None) -> int:
        """How many of ``num_rows`` points of a round without a certified one may teach."""
        if self.counts.num_idle < PATIENCE:
            return 0
        if self.start is None or tracker is None:
            return min(num_rows, 1)
        return max(0, min(num_rows, math.floor(self.slack(tracker) / self.share)))

    def slack(self, tracker: TrackerState) -> float:
        """``(1 - p) T + (c - a) / eta - V``, the least over the sides.

        Each uncertified hit takes ``1 - p`` off it (at a lower limit: each uncertified miss).
        """
        counts = self.counts
        # The end that hits push the constant to, if so many are compared with one threshold.
        beyond = (counts.largest_batch - 1) * tracker.first_step * self.share
        heights = [
            (c - a if sign > 0 else b - c) + beyond
            for (a, b), c, sign in zip(self._ends, tracker.constants, self.signs, strict=True)
        ]
        allowed = self.share * counts.num_certified
        return min(
            allowed + height / tracker.next_step - violations
            for height, violations in zip(heights, counts.violations, strict=True)
        )

    def balanced(self, constants: Tensor, next_step: float, integral_gain: float) -> Tensor:
        """The constants ``s``, moved after a round with a certified point, see the class."""
        counts, moved = self.counts, []
        for c, sign, misses, (a, b) in zip(
            constants.unbind(), self.signs, counts.misses, self._ends, strict=True
        ):
            excess = integral_gain * (misses - self.share * counts.num_certified)
            move = next_step * min(max(excess, -_LEEWAY * self.share), _LEEWAY * self.share)
            # Several points in a round may have pushed the constant out of the interval: it is not
            # pulled back, which the proof would not allow, but not pushed farther either.
            if sign * move > 0.0:
                moved.append(torch.maximum(c, (c + abs(move)).clamp(max=b)))
            else:
                moved.append(torch.minimum(c, (c - abs(move)).clamp(min=a)))
        return torch.stack(moved)

    def bound(
        self, num_certified: int, last_step: float, first_step: float, batch_size: int = 1
    ) -> float:
        """Largest number of violations among the first ``num_certified`` certified points.

        Args:
            num_certified: Number of certified points.
            last_step: The tracker's step size at the last of them.
            first_step: Its first, and largest, step size.
            batch_size: Largest number of points of a round, if larger than it was so far.
        """
        # Points observed at once lengthen the interval, which was measured for one at a time.
        extra = (max(batch_size, self.counts.largest_batch) - 1) * first_step
        bound = sum(self.share * num_certified + (b - a + extra) / last_step for a, b in self._ends)
        # Violations are counted: 26.999999999999996 would say 26 where 27 is meant.
        return min(round(bound, _DECIMALS), float(num_certified))

    @property
    def _ends(self) -> list[tuple[float, float]]:
        """The interval that the constant of each side stays in."""
        if self.start is None:
            raise UnsupportedError(
                "This account has no bound to keep: it was opened without `start`."
            )
        return list(zip(self.start.lowest, self.start.highest, strict=True))

    def state_dict(self) -> dict[str, Any]:
        """The start and the counts, in numbers and lists of them."""
        start = None if self.start is None else asdict(self.start)
        return {"guarantee": start, **asdict(self.counts)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on with the counts of another account of the same sides, from its `state_dict`."""
        counts = deepcopy(dict(state_dict))
        start = counts.pop("guarantee")
        self.start = None if start is None else TrackerStart(**start)
        self.counts = Counts(**counts)


def _sums(before: list[int], now: Tensor) -> list[int]:
    """Counts ``s`` after rows of booleans ``n x s``."""
    return [count + more for count, more in zip(before, now.sum(dim=0).tolist(), strict=True)]
