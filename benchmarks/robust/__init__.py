"""Suites under a context whose distribution is not known.

================ ========================================================
file             content
================ ========================================================
``suites``       the suites of this room
``replicate``    the loop with contexts, and the tasks of `robust`
``methods``      the methods: one strategy, with different ambiguity sets
``report``       the report of `robust`
``shift``        `robust_shift`: problems, methods and replicate
``shift_report`` its report
``primary``      the comparisons that all reports begin with
================ ========================================================
"""
