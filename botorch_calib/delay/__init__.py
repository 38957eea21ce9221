"""Delayed feedback: a ledger of queries whose values arrive later, and what fills it."""

from botorch_calib.delay.executor import AsynchronousOptimizer, RunSummary
from botorch_calib.delay.ledger import FeedbackLedger
from botorch_calib.delay.trials import Trial, TrialStatus

__all__ = ["AsynchronousOptimizer", "FeedbackLedger", "RunSummary", "Trial", "TrialStatus"]
