"""Building blocks of all benchmark suites; no module here depends on a suite.

==================== =======================================================================
file                 content
==================== =======================================================================
``suite``            `Suite`: problems, methods, seeds, a report and the data that are archived
``config``           the configuration of a problem and a method as JSON, and its hash
``replicate``        `Replicate`: the loop that all suites share, and random streams
``replicate_result`` `Result`: the data of a replicate; scores by seed, and their means
``stored_results``   `ResultStore`: files of results, and how results are condensed
``sequential``       `Problem`, `Method` and their replicate, without delays of outcomes
``landscapes``       noisy test functions, and a Gaussian process fitted to many points
``strategies``       random search, and the maximization of an acquisition function
``surrogates``       `Surrogate`: the Gaussian process that a problem gives to its methods
``rbf_surrogate``    the surrogate of `delay` and `robust`, fitted from two starting points
``runner``           run the missing replicates of a suite, in parallel
``protocol``         `ExperimentProtocol`: the header of a protocol, which a suite must match
``report``           write the table and the figure of a suite
``metrics``          scores: functions from a result to a number
``statistics``       means with errors, paired tests, intervals and corrections
``comparisons``      the comparisons that a protocol declares, corrected for their number
``markdown``         pages with placeholders, and the tables that replace them
``plots``            figures with panels, curves and intervals
==================== =======================================================================
"""
