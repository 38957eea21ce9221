"""The ledger of queries and the values that have arrived, in memory or in a file.

======================= ===============================================================
file                    content
======================= ===============================================================
``ledger``              `FeedbackLedger`: all that users call
``trials``              a trial, and how it may change
``contents``            all trials at one moment, under the ledger's settings
``storage``             changes them, in memory and in a table of SQLite
``view_at_time``        what was known at one time
``arrival_probability`` how many values arrive in time
======================= ===============================================================
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
