"""The ledger: which queries were made, and which values have arrived, in memory or on disk."""

from botorch_calib.ledger.ledger import FeedbackLedger
from botorch_calib.ledger.trials import EarlierValue, Trial, TrialStatus

__all__ = ["EarlierValue", "FeedbackLedger", "Trial", "TrialStatus"]
