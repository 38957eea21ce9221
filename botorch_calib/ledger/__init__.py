"""The ledger of queries and the values that have arrived, in memory or in a file.

======================= ==================================================================
file                    content
======================= ==================================================================
``ledger``              `FeedbackLedger`: all that users call
``trials``              `Trial`: one query, and how its state may change
``view_at_time``        states and data of the trials, as known at one time
``arrival_probability`` how likely a value is to come in time
``contents``            settings and trials, with the numbers as columns
``argument_checks``     checks of its arguments
``storage``             changes of the contents, each made completely or not at all
``file_storage``        the same, recorded in an SQLite file
``sql_tables``          tables, rows and checksums of the file
``writer_lock``         one process at a time writes to a file
``salvage``             a new ledger of the intact trials in a damaged file
``__main__``            the command line, for people at a bench
======================= ==================================================================
"""

from botorch_calib.ledger.arrival_probability import ArrivalProbability
from botorch_calib.ledger.ledger import DecidedQuery, FeedbackLedger
from botorch_calib.ledger.trials import EarlierValue, Trial, TrialStatus

__all__ = [
    "ArrivalProbability",
    "DecidedQuery",
    "EarlierValue",
    "FeedbackLedger",
    "Trial",
    "TrialStatus",
]
