"""Asynchronous optimisation: the loop, its workers, and what chooses the next query."""

from botorch_calib.asynchronous.optimizer import AsynchronousOptimizer, RunSummary
from botorch_calib.asynchronous.proposer import DelayAwareProposer

__all__ = ["AsynchronousOptimizer", "DelayAwareProposer", "RunSummary"]
