"""Speed of the package, as ratios to BoTorch.

========================== =============================================================
file                       content
========================== =============================================================
``command``                ``python -m benchmarks perf``
``gpu``                    ``python -m benchmarks gpu``
``measure``                `Comparison`: how two calls are timed in turn
``operations``             how many operations a call dispatches, and how often it waits
``calibrated_and_delayed`` comparisons of calibrated and delayed acquisition functions
``noisy``                  of noisy ones with cached roots
``batches``                of batch ones by joint samples
``decisions``              of chance constraints
``robust``                 of robust bounds
``ensembles``              of log expected improvement of ensembles
``single_points``          of log expected improvement by size and kernel
``transformed_outcomes``   of log expected improvement of log outcomes
``proposals``              of proposals between two fits
``ax_trial``               of a trial in Ax
``optuna_trial``           of a trial in Optuna
========================== =============================================================
"""
