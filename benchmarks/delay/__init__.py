"""Suites on delayed feedback.

================== =======================================================================
file               content
================== =======================================================================
``suites``         the suites of this room
``replicate``      the loop under delays, and the tasks of `delay`
``objectives``     the objectives that tasks delay
``networks``       two of them: small models trained by mini-batches
``svm``            two of them: a support vector machine, on all data and on growing parts
``value_tables``   objectives on finite domains, computed once and kept
``methods``        the methods: one strategy, with settings
``report``         the report of `delay`
``workers``        `delay_workers`: problems and methods
``workers_report`` its report
``sdf_published``  `sdf_published` and `sdf_hyperparameters`: problems and methods
``sdf_contexts``   `sdf_contexts`: its problem and methods
``sdf_tasks``      `sdf_tasks`: its problem, made of classification tasks, and methods
``sdf_sweeps``     `sdf_sweeps`: problems
``sdf_report``     the report of these five
================== =======================================================================
"""
