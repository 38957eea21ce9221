"""Asynchronous optimization: the loop, its workers, and the choice of the next query.

============================ ===================================================================
file                         content
============================ ===================================================================
``optimizer``                `AsynchronousOptimizer`: the user's entry point
``evaluation_loop``          starts and awaits evaluations, records, repeats and gives up
``evaluation_limits``        `EvaluationLimits`: time-outs, retries, when a run gives up
``evaluation_outcomes``      whether an evaluation has brought a value, a failure or a loss
``workers``                  what the loop asks of the places where evaluations run, which are:
``watched_processes``        processes of our own: who notices dead ones, and kills late ones
``callers_executors``        threads, process pools and others: who notices that one broke
``dask_workers``             a Dask cluster: who notices that it is lost, and restarts workers
``process_startup``          what runs inside a process of our own
``termination``              SIGTERM, taken like ctrl-C
``progress``                 the progress bar, and `RunSummary`
``proposer``                 `DelayAwareProposer`: chooses the next query
``delay_strategy``           `DelayStrategy`: what it makes of pending and failed queries
``ledger_model``             the model of what a ledger knows, with failed and pending queries
``designs``                  queries that fill the box, whatever the values are
``feasibility``              where queries bring values, from those that failed
``failures``                 what follows from them: which count, their values, what they cost
``overdue``                  which queries hang, by how many later ones have overtaken them
``repeated_points``          which points are the same as one of others
``refits``                   when that model is fitted again, and what is known in between
============================ ===================================================================
"""

from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.asynchronous.evaluation_limits import EvaluationLimits
from botorch_calib.asynchronous.optimizer import AsynchronousOptimizer
from botorch_calib.asynchronous.progress import RunSummary
from botorch_calib.asynchronous.proposer import DelayAwareProposer, SearchSettings

__all__ = [
    "AsynchronousOptimizer",
    "DelayAwareProposer",
    "DelayStrategy",
    "EvaluationLimits",
    "RunSummary",
    "SearchSettings",
]
