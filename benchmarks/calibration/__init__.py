"""Suites that compare calibrated with plain Bayesian optimization, and `smoke`.

====================== ================================================================
file                   content
====================== ================================================================
``suites``             the suites of this room
``methods``            plain and calibrated methods, and the settings that suites share
``ackley``             the problems of `locbo`, `locbo_settings` and `smoke`
``stateful``           the stateful form of LOCBO
``published``          `locbo_full` and `locbo_sweeps`: problems and methods
``published_report``   their report
``misspecified``       the problems of `misspecified`
``wellspecified``      the problems of `wellspecified`
``coverage_report``    the report of both
``understated``        the problems of `understated_noise`
``remedies``           its methods
``claims``             its replicate: what the last model says of the objective, judged
``understated_report`` its report
``synthetic``          the problems of `calibration`
``baselines``          its methods: other remedies for a wrong Gaussian process
``warping``            transforms of outcomes, which some of these use
``calibration_report`` its report, whose tables others show as well
``any_model``          `any_model`: kinds of model, calibrators and how they forecast
``any_model_report``   its report
``designs``            `ocbo_designs`: problems and methods
``tasks``              `ocbo_tasks`: problems, methods and replicate
``topics``             one of its tasks, a topic model
``ocbo_report``        the report of both
``rivals``             the methods of `rivals`, of Optuna and Ax
``syne_tune_process``  one of them, in an environment of its own
``tuning_tables``      its problems: tuning tasks on data of scikit-learn
``rivals_report``      its report
``log_regret``         the logarithm of the last regret, an endpoint of many of these
====================== ================================================================
"""
