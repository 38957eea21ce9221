"""Searches in a box, and their helpers, which know BoTorch's models alone.

====================== =============================================================================
file                   content
====================== =============================================================================
``region``             a box, of which columns may be fixed, with linear constraints
``unit_box``           a search whose end does not depend on any units
``separate_starts``    the option by which it climbs from each start on its own
``search_warnings``    searches that do not warn of why they stop
``side_by_side``       searches that climb together, one evaluation serving all of them
``robust_search``      `optimize_robust`: the best decision by a bound with kinks
``random_seeds``       random numbers that depend on seeds alone
====================== =============================================================================
"""

from botorch_calib.optim.robust_search import optimize_robust

__all__ = ["optimize_robust"]
