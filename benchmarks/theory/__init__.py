"""Quantities from the papers' theorems, which only studies need.

========================= ==========================================================================
file                      content
========================= ==========================================================================
``stated_gains``          whether gains exceed the stated gains, by OCBO's Theorem 1
``confidence_multiplier`` the factor of the variance for which a confidence bound is proven
``wasserstein_radius``    the radius for which a robust bound is proven, and its covering number
``information_gain``      the maximal information gain, which bounds of regret depend on
``delayed_regret``        bounds of regret under delays
``robust_regret``         bounds of regret under shifts of the contexts
========================= ==========================================================================
"""

from benchmarks.theory.confidence_multiplier import confidence_multiplier
from benchmarks.theory.stated_gains import StatedGains, stated_gains
from benchmarks.theory.wasserstein_radius import log_covering_number, wasserstein_radius

__all__ = [
    "StatedGains",
    "confidence_multiplier",
    "log_covering_number",
    "stated_gains",
    "wasserstein_radius",
]
