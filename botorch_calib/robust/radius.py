"""`RadiusSchedule`: a radius that shrinks with the number of observed contexts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from botorch_calib._validation import check_count, check_nonnegative


@dataclass(frozen=True)
class RadiusSchedule:
    """The practical radius ``c / sqrt(t)``, which shrinks like the theoretical one.

    Any ball takes it as its ``radius``, such as ``TotalVariationBall(RadiusSchedule(1))``.

    Attributes:
        c: Radius at ``t = 1``, for Wasserstein balls in the unit of the contexts. The paper's
            experiments use 0.3 for contexts in a unit cube.

    Example:
        >>> RadiusSchedule(0.3)(4)
        0.15
        >>> ball = WassersteinBall(RadiusSchedule(0.3))
    """

    c: float = 0.3

    def __post_init__(self) -> None:
        check_nonnegative("c", self.c)

    def __call__(self, t: int) -> float:
        """Radius after ``t >= 1`` samples of the context."""
        return self.c / math.sqrt(check_count("t", t))
