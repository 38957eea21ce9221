"""Calibrated models inside other frameworks, each behind its extra.

Without it, ``ax``, ``optuna``, ``xopt`` and ``baybe`` raise an error that names it; the other files
of Ax and Optuna import those first.

======================== ===========================================================================
file                     content
======================== ===========================================================================
``ax``                   Ax's strategy with calibrated models, and helpers of all files on Ax
``_ax_models``           how Ax builds, fits and stores a calibrated model
``_ax_acquisition``      which acquisition functions Ax is given for one
``ax_delays``            delay-aware proposals in Ax
``ax_decisions``         certified trials in Ax, and what to recommend
``ax_cards``             analysis cards for Ax
``optuna``               calibrated models in Optuna, whose parameters are points of the unit cube
``optuna_delays``        delay-aware proposals in Optuna
``optuna_decisions``     chance constraints in Optuna
``xopt``                 calibrated models in Xopt
``xopt_decisions``       chance constraints in Xopt
``baybe``                chance constraints in BayBE
``_mixed_search``        spaces with discrete parameters, and the best certified point of one
``_stored_decisions``    decisions that clients store with trials, and the constraints made of them
``stored_calibrators``   calibrators in the files of a client
======================== ===========================================================================
"""
