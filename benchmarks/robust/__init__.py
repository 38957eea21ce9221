"""Suites under a context whose distribution is not known.

================ ========================================================
file             content
================ ========================================================
``suites``       the suites of this room
``replicate``    the loop with contexts, and the tasks of `robust`
``methods``      the methods: one strategy, with different ambiguity sets
``report``       the report of `robust` and `robust_further`
``further``      `robust_further`: problems and methods
``portfolio``    two of its problems
``shift``        `robust_shift`: problems, methods and replicate
``shift_report`` its report
``primary``      the comparisons that all reports begin with
================ ========================================================
"""
