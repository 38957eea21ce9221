"""Asynchronous optimization: the loop, and the choice of the next query.

============================ ===================================================================
file                         content
============================ ===================================================================
``optimizer``                `AsynchronousOptimizer`: the loop, on any executor
``pebble_executor``          `PebbleExecutor`: processes that may be killed, with a time limit
``proposer``                 `DelayAwareProposer`: chooses the next query
``delay_strategy``           `DelayStrategy`: options for pending and failed queries
``designs``                  queries that fill the box, whatever the values are
``failed_queries``           a model of failures, their values and cost; leaving their borders
``hanging_queries``          which queries hang, by how many later ones have overtaken them
``refits``                   the model of a ledger: the schedule of its fits, and later values
============================ ===================================================================
"""

from botorch_calib.asynchronous.delay_strategy import DelayStrategy
from botorch_calib.asynchronous.optimizer import AsynchronousOptimizer
from botorch_calib.asynchronous.pebble_executor import PebbleExecutor
from botorch_calib.asynchronous.proposer import DelayAwareProposer, SearchSettings

__all__ = [
    "AsynchronousOptimizer",
    "DelayAwareProposer",
    "DelayStrategy",
    "PebbleExecutor",
    "SearchSettings",
]
