"""Calibrated models in other frameworks, each of which is an optional dependency.

If a framework is missing, importing ``ax``, ``optuna``, ``xopt`` or ``baybe`` raises an error that
names the extra to install. So do the other modules for Ax and Optuna, which import these first.
"""
