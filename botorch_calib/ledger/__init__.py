"""The ledger: which queries were made, and which values have arrived, in memory or in a file.

=================== ======================================================================
file                content
=================== ======================================================================
``ledger``          `FeedbackLedger`: all that users call
``trials``          `Trial`: one query, and how its state may change
``view_at_time``    what was known at a time: states, and data as tensors
``contents``        all that a ledger holds, with its numbers as columns; its settings
``argument_checks`` checks of what is given to it
``storage``         changes of the contents, each made completely or not at all
``file_storage``    the same, recorded in an SQLite file
``sql_tables``      tables, rows and checksums of the file
``writer_lock``     one process at a time writes to a file
``salvage``         what SQLite can still read of a damaged file
``__main__``        the command line, for people at a bench
=================== ======================================================================
"""

from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.trials import EarlierValue, Trial, TrialStatus

__all__ = ["EarlierValue", "FeedbackLedger", "Trial", "TrialStatus"]
