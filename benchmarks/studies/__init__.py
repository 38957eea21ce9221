"""Studies of one question each, with a report of their own; none is a suite of the registry.

====================== ====================================================================
file                   content
====================== ====================================================================
``forrester``          does calibration lead the search out of a wrong basin?
``objective_coverage`` whose is the excess of spread, the objective's or the noise's?
``joint_samples``      where should the noise in joint samples come from?
``hanging_region``     what does a region that hangs cost, where the best point lies in it?
``proposal_time``      how long does a proposal take after thousands of values?
``simpler_forms``      what do the special ways of the calibrated integrals gain?
====================== ====================================================================
"""
