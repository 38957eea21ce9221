"""The suites on chance constraints.

==================== ===============================================================
file                 content
==================== ===============================================================
``suites``           the suites
``tasks``            their problems: an objective and an outcome with a limit
``untuned``          further ones, on which nothing was tuned: faults and small safe sets
``random_functions`` small safe sets of random functions, drawn anew for each seed
``further``          others with more inputs, two limits, workers, and how they are run
``real_limits``      problems that others made, as tables, and how they are run
``real_tables``      makes these tables
``methods``          their methods: what states the quantile
``usual_rules``      how other packages treat a limit
``oracle``           methods that know the true quantile, or the right hyperparameters
``tracked_quantile`` the rule of chance constraints before the budget
``replicate``        the loop: a certified choice in each round
``analysis``         what runs are judged by, and rewards at equal rates of violations
``report``           the report
``oracle_report``    that of suites with an oracle: beside it and the plain quantile
==================== ===============================================================
"""
