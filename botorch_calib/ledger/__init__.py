"""The ledger: which queries were made, and which values have arrived, in memory or on disk.

====================== =============================================================================
file                   content
====================== =============================================================================
``ledger``             `FeedbackLedger`: all that users call
``trials``             `Trial`: one query, and how its state may change
``view_at_time``       what was known at a time: states, and data as tensors
``settings``           settings of a ledger, and its clock
``argument_checks``    checks of what is given to it
``table``              trials as columns, which both storages keep
``storage_in_memory``  trials in memory, and the interface of all storages
``storage_on_disk``    trials in a file that several processes may share
``file_format``        tables, rows and checksums of the file
``salvage``            what is left in a damaged file
``file_locks``         whether a file system has locks that work
``presence``           how a run shares a ledger with other runs
``owners``             which runs are using a ledger, and whether they still live
``__main__``           the command line, for people at a bench
====================== =============================================================================
"""

from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.trials import EarlierValue, Trial, TrialStatus

__all__ = ["EarlierValue", "FeedbackLedger", "Trial", "TrialStatus"]
