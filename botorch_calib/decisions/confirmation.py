r"""`ConfirmationTest`: a sequential test that one point keeps its limits often enough."""

from __future__ import annotations

import math
import reprlib
from bisect import bisect_left
from collections.abc import Iterable

import numpy as np
import torch
from botorch.exceptions.errors import InputDataError
from torch import Tensor

from botorch_calib._validation import check_open_unit
from botorch_calib.decisions.budget import check_level

# The test bets on a violation rate of 0 and, second, on this share of the allowed rate.
_ALTERNATIVE = 0.25
# Rounding error of the log wealth. Half of it is the minimum weight of the second bet: with a
# weight of 0, the wealth would stay 0 after a single violation.
_ROUNDING = 1e-12


class ConfirmationTest:
    r"""Sequential test that repeated measurements at one point rarely violate the limits.

    The test bets against the claim that a measurement violates a limit with probability
    ``alpha = 1 - level`` or more. With ``L = 1`` for a violation and 0 otherwise, the wealth is

        ``W = sum_p w_p prod (p / alpha)^L ((1 - p) / (1 - alpha))^(1 - L)``

    The product is over the measurements. The sum is over two bets, the violation rates ``p = 0``
    and ``p = alpha / 4``, with weights ``w_p`` that add up to 1. The weight of ``p = 0`` is at
    least 1/2, and large enough that the other bet never delays a confirmation if there are no
    violations. Once ``W`` reaches ``1 / (1 - confidence)``, it is *confirmed* that the probability
    of a violation is less than ``alpha``. With a level of 0.9 and a confidence of 0.95 this takes
    29 measurements without a violation, or 84 measurements including one violation.

    **Proof.** Since ``p < alpha``, the factor of a measurement is smaller for ``L = 1`` than for
    ``L = 0``, and the mean of the factor is 1 if ``P(L = 1) = alpha``. So if each measurement
    violates a limit with probability at least ``alpha`` given the earlier measurements, ``W`` is a
    nonnegative supermartingale that starts at 1. By Ville's inequality, ``W`` ever reaches
    ``1 / delta`` with probability at most ``delta``, here ``1 - confidence``. So the result may be
    read after each measurement, and the test may stop at any time. Measurements may be
    dependent. The point may be chosen in any way, but before the measurements.

    Args:
        level: Probability, in (0, 1), with which a measurement must keep the limits.
        confidence: Confidence of the test, in (0, 1). A point that keeps the limits with
            probability ``level`` or less is confirmed with probability at most ``1 - confidence``.

    Example:
        >>> test = ConfirmationTest(level=0.9, confidence=0.95)
        >>> confirmed = test.observe([False] * 20)
        >>> test.num_needed  # without a further violation
        9
    """

    def __init__(self, level: float = 0.9, confidence: float = 0.95) -> None:
        self.level = level = check_level(level)
        self.confidence = confidence = check_open_unit("confidence", confidence)
        self.num_clean = self.num_violations = 0
        self.confirmed = False
        #: The largest level that the measurements so far prove with `confidence`, 0 at first.
        self.proved_level = 0.0
        num = max(1, math.ceil(math.log1p(-confidence) / math.log(level) - 1e-9))
        # The first bet alone needs ``num`` measurements without a violation. Its weight must be so
        # large that both bets together need no more. Relative to the first bet, ``rarely`` is the
        # log wealth of the second bet, and ``needed`` is the log wealth that confirms the point.
        rarely = num * math.log1p(-_ALTERNATIVE * (1.0 - level))
        needed = num * math.log(level) - math.log1p(-confidence)
        weight = (math.exp(needed) - math.exp(rarely)) / -math.expm1(rarely)
        self._weight = min(max(weight, 0.5), 1.0 - 0.5 * _ROUNDING)

    def observe(self, violated: bool | Tensor | Iterable[bool]) -> bool:
        """Record further measurements, and return whether the point is confirmed by now.

        Args:
            violated: For each measurement, whether it violated a limit.

        Raises:
            InputDataError: If ``violated`` has other elements than True and False (or 1 and 0).
        """
        for one in _flags(violated):
            self.num_violations += bool(one)
            self.num_clean += not one
            self.confirmed |= self._proves(self.level)
            # Bisection over multiples of 1e-6: if a level is proved, so are all smaller levels.
            proved = bisect_left(range(1, 10**6), True, key=lambda i: not self._proves(1e-6 * i))
            self.proved_level = max(self.proved_level, 1e-6 * proved)
        return self.confirmed

    @property
    def num_measured(self) -> int:
        """Number of measurements so far."""
        return self.num_clean + self.num_violations

    @property
    def wealth(self) -> float:
        """The present wealth ``W`` (see the class), reported as ``e^700`` if it is larger."""
        return math.exp(min(self._log_wealth(self.level, self.num_clean), 700.0))

    @property
    def num_needed(self) -> int:
        """The number of further measurements that confirm the point if none is a violation."""
        if self.confirmed:
            return 0
        return bisect_left(range(2**62), True, key=lambda more: self._proves(self.level, more))

    def _proves(self, level: float, more: int = 0) -> bool:
        """Return whether ``level`` is proved after ``more`` measurements without a violation.

        The wealth decreases in the level. So ``confidence`` holds for all levels simultaneously.
        """
        needed = -math.log1p(-self.confidence) - _ROUNDING
        return self._log_wealth(level, self.num_clean + more) >= needed

    def _log_wealth(self, level: float, num_clean: int) -> float:
        log_rare = num_clean * (math.log1p(-_ALTERNATIVE * (1.0 - level)) - math.log(level))
        log_rare += self.num_violations * math.log(_ALTERNATIVE)
        log_rare += math.log1p(-self._weight)
        if self.num_violations:
            return log_rare
        log_never = math.log(self._weight) - num_clean * math.log(level)
        return log_never + math.log1p(math.exp(log_rare - log_never))

    def __repr__(self) -> str:
        more = f"; at best {self.num_needed} more confirm {self.level:g}"
        return (
            f"{self.num_violations} of {self.num_measured} measurements violated a limit: "
            f"P(within) > {self.proved_level:.3g} with confidence {self.confidence:g}"
            f"{', confirmed' if self.confirmed else more}"
        )


def _flags(violated: bool | Tensor | Iterable[bool]) -> list[float]:
    """Return flags as a list of numbers, 0 or 1; raise if any is neither True nor False."""
    if isinstance(violated, Iterable) and not isinstance(violated, Tensor | np.ndarray):
        violated = [*violated]
    try:
        flags = torch.as_tensor(violated).flatten()
    except (RuntimeError, TypeError, ValueError):
        flags = torch.tensor([torch.nan])
    if not ((flags == 0) | (flags == 1)).all():
        raise InputDataError(
            "`violated` must be True or False for each measurement, got "
            f"{reprlib.repr(violated)}: compare the outcomes with the limits, and leave out "
            "unknown outcomes."
        )
    found: list[float] = flags.tolist()
    return found
