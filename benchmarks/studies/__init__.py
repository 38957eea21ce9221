"""Studies of one question each, with a report of their own; none is a suite of the registry.

======================== ====================================================================
file                     content
======================== ====================================================================
``archived_again``       does the code still give the numbers that the archives hold?
``command_line``         options that studies share, and runs from which they go on
``failing_border``       what does the border of a failing region cost, in vain or not?
``forrester``            does calibration lead the search out of a wrong basin?
``objective_coverage``   is excess spread the objective's or the noise's?
``joint_samples``        where should the noise in joint samples come from?
``hanging_region``       what does a hanging region cost, where the best point lies in it?
``never_arriving``       do values that never arrive cost regret, or their censoring?
``optuna_outcomes``      our sampler beside Optuna's, with constraints and several objectives
``partly_evaluable``     functions of the studies of failing and hanging regions
``proposal_time``        how long does a proposal take after thousands of values?
``simpler_forms``        what do the special ways of calibrated integrals gain?
``stopping``             how often is a stopping rule right if the model is wrong?
``two_theorems``         do stated gains and misses of the objective keep their bounds?
======================== ====================================================================
"""
