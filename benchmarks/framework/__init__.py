"""What every suite is made of; nothing here knows a room.

==================== =======================================================================
file                 content
==================== =======================================================================
``suite``            `Suite`: problems, methods, seeds, a report and what an archive keeps
``config``           the configuration of a problem and a method as JSON, and its hash
``replicate``        `Replicate`: the loop that all suites share, and random streams
``replicate_result`` `Result`: all that a replicate gives; scores by seed, and their means
``stored_results``   `ResultStore`: files of results, and how they are condensed for these
``sequential``       `Problem`, `Method` and their replicate, where outcomes are known at once
``landscapes``       test functions with kinds of noise, and the process fitted to many points
``strategies``       what ordinary methods do: random search, and an acquisition function
``surrogates``       `Surrogate`: the Gaussian process that a problem gives to its methods
``rbf_surrogate``    the one of `delay` and `robust`, fitted from two starts
``runner``           run what is missing of a suite, in parallel
``protocol``         `ExperimentProtocol`: the header of a protocol, which a suite must match
``report``           write a table and a figure: what all reports have in common
``metrics``          scores: numbers that a result is judged by
``statistics``       means with errors, paired tests, intervals and corrections
``comparisons``      the comparisons that a protocol declares, corrected for their number
``markdown``         pages with slots, and tables that fill them
``plots``            panels and what is drawn in them
==================== =======================================================================
"""
