"""Asynchronous optimization: parallel evaluations, and queries chosen while others are pending."""

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
