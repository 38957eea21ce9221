"""The ledger of queries and the values that have arrived, in memory or in a file.

`FeedbackLedger`, in ``ledger``, is all that users call: ``trials`` says how a trial may change, and
the file ``contents`` holds all of them, which ``storage`` changes and stores. What was known at one
time is said by ``view_at_time`` and ``arrival_probability``.
"""

from botorch_calib.ledger.arrival_probability import ArrivalProbability
from botorch_calib.ledger.ledger import DecidedQuery, FeedbackLedger, LedgerSummary
from botorch_calib.ledger.trials import EarlierValue, Trial, TrialStatus

__all__ = [
    "ArrivalProbability",
    "DecidedQuery",
    "EarlierValue",
    "FeedbackLedger",
    "LedgerSummary",
    "Trial",
    "TrialStatus",
]
