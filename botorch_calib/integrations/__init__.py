"""Calibrated models inside other frameworks, each behind its extra.

====================== =============================================================================
file                   content
====================== =============================================================================
``ax``                 Ax's strategy with calibrated models, and helpers of all files on Ax
``_ax_models``         how Ax builds, fits and stores a calibrated model
``_ax_acquisition``    which acquisition functions Ax is given for one
``_ax_search_space``   the best certified point of a space of Ax's
``_trial_records``     decisions that clients store with trials, and constraints made of them
``ax_decisions``       certified trials in Ax, and what to recommend
``ax_cards``           analysis cards for Ax
``ax_delays``          delay-aware proposals in Ax
``ax_robust``          robust decisions in Ax
``optuna``             calibrated models in Optuna
``optuna_delays``      delay-aware proposals in Optuna
``xopt``               calibrated models in Xopt
``stored_calibrators`` calibrators in the files of a client
``stored_robustness``  contexts and ambiguity sets in the files of a client
====================== =============================================================================
"""
