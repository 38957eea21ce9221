"""The ledger: a record of queries and their values, in memory or in a file."""

from botorch_calib.ledger.ledger import DecidedQuery, FeedbackLedger, LedgerSummary
from botorch_calib.ledger.trials import EarlierValue, Trial, TrialStatus
from botorch_calib.ledger.view_at_time import ArrivalProbability

__all__ = [
    "ArrivalProbability",
    "DecidedQuery",
    "EarlierValue",
    "FeedbackLedger",
    "LedgerSummary",
    "Trial",
    "TrialStatus",
]
