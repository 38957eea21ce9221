"""Warnings and errors of the package, in addition to ``botorch.exceptions``."""

import sys
import warnings

from botorch.exceptions.errors import BotorchError
from botorch.exceptions.warnings import BotorchWarning


class CalibrationWarning(BotorchWarning):
    """Issued if a statement about calibration is unreliable, for example with few observations."""


class NotCertifiedWarning(BotorchWarning):
    """Issued if no point was found that meets a chance constraint at its level."""


class LedgerError(BotorchError):
    """Raised if a feedback ledger cannot perform an operation."""


class TrialStateError(LedgerError):
    """Raised if a trial's state does not allow a change, such as a second observation."""


class UnknownTrialError(LedgerError):
    """Raised if no trial of the ledger has the given id."""


class DamagedLedgerError(LedgerError):
    """Raised if a file is damaged, is not a ledger, or has a format unknown to this version."""


class EvaluationError(BotorchError, RuntimeError):
    """Raised if an objective cannot be evaluated: its executor is lost, or its trials fail."""


def warn(message: str, category: type[Warning] = CalibrationWarning) -> None:
    """Issue a warning whose location is the line of code that called the package.

    To find this line, frames of the package and of PyTorch, whose decorators wrap some of the
    package's functions, are skipped.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back and frame.f_globals["__name__"].split(".")[0] in ("botorch_calib", "torch"):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)
