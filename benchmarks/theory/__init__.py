"""Quantities of the papers' theorems, which studies check and no search needs.

========================= ==========================================================================
file                      content
========================= ==========================================================================
``stated_gains``          whether outcomes gain more than was stated, by OCBO's Theorem 1
``confidence_multiplier`` the factor of the variance for which a confidence bound is proven
``wasserstein_radius``    the radius that goes with it, and the covering number in it
``information_gain``      how much queries can tell at most, by which bounds of regret grow
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
