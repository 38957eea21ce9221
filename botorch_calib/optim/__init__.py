"""Searches in a box, and their helpers, which know BoTorch's models alone.

====================== =============================================================================
file                   content
====================== =============================================================================
``region``             a box, of which columns may be fixed, with linear constraints
``scaled_search``      a search whose end does not depend on any units
``search_warnings``    searches that do not warn of why they stop
``batched_searches``   searches that climb together, one evaluation serving all of them
``robust_search``      `optimize_robust`: the best decision by a bound with kinks
``random_seeds``       random numbers that depend on seeds alone
====================== =============================================================================
"""

from botorch_calib.optim.robust_search import optimize_robust

__all__ = ["optimize_robust"]
