"""Calibrated models inside other frameworks, each behind its extra.

====================== =============================================================================
file                   content
====================== =============================================================================
``ax``                 calibrated models in Ax, and what the other two files on Ax share
``ax_delays``          delay-aware proposals in Ax
``ax_robust``          robust decisions in Ax
``optuna``             calibrated models in Optuna
``optuna_delays``      delay-aware proposals in Optuna
``xopt``               calibrated models in Xopt
``stored_calibrators`` calibrators in the files of a client
``stored_robustness``  contexts and ambiguity sets in the files of a client
====================== =============================================================================
"""
