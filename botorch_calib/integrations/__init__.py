"""Calibrated models in other frameworks, each of which is an optional dependency.

If a framework is missing, importing ``ax``, ``optuna``, ``xopt`` or ``baybe`` raises an error that
names the extra to install. The other modules for Ax and Optuna raise the same errors.
"""
