"""A rival of the papers that suite `robust` compares with: a ball in the maximum mean discrepancy.

======================== =================================
file                     content
======================== =================================
``mmd_ball``             `MMDBall`: the ambiguity set
``simplex_in_ellipsoid`` its solver
======================== =================================
"""

from benchmarks.baselines.mmd_ball import MMDBall

__all__ = ["MMDBall"]
