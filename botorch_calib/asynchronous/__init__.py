"""Asynchronous optimization: the loop, its workers, and the choice of the next query.

============================ ===================================================================
file                         content
============================ ===================================================================
``optimizer``                `AsynchronousOptimizer`: the user's entry point
``evaluation_loop``          starts, awaits, records and repeats evaluations; SIGTERM
``evaluation_limits``        `EvaluationLimits`: time-outs, retries, when a run gives up
``evaluation_outcomes``      whether an evaluation has brought a value, a failure or a loss
``workers``                  `Workers`: the interface to the places where evaluations run
``watched_processes``        processes of our own: dead, late and worn ones are replaced
``callers_executors``        threads, process pools and others: a broken one is replaced
``dask_workers``             a Dask cluster: whether it is lost; restarts workers
``process_startup``          code that runs inside a process of our own
``progress``                 the progress bar, and `RunSummary`
``proposer``                 `DelayAwareProposer`: chooses the next query
``delay_strategy``           `DelayStrategy`: options for pending and failed queries
``ledger_model``             the model of a ledger, with failed and pending queries
``designs``                  queries that fill the box, whatever the values are
``failure_model``            a model of failures: where queries bring values
``failing_borders``          the borders of regions that fail, and when to turn away from them
``failed_queries``           which failures count, their values, their cost; where not to search
``overdue``                  which queries hang, by how many later ones have overtaken them
``refits``                   the schedule of fits, and conditioning on later values
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
