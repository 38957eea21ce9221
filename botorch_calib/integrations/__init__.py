"""Calibrated models inside other frameworks, each behind its extra.

Without it, ``ax``, ``optuna``, ``xopt`` and ``baybe`` raise an error that names it; the other files
of Ax and Optuna import those first.
"""
