"""Warnings and errors of the package, in addition to ``botorch.exceptions``."""

import sys

from botorch.exceptions.errors import BotorchError
from botorch.exceptions.warnings import BotorchWarning


class CalibrationWarning(BotorchWarning):
    """A statement about calibration is unreliable, for example with too few observations."""


class NotCertifiedWarning(BotorchWarning):
    """No point was found that meets a chance constraint at its level."""


class LedgerError(BotorchError):
    """A feedback ledger cannot perform an operation."""


class TrialStateError(LedgerError):
    """A trial's state does not allow the change, for example a second observation."""


class UnknownTrialError(LedgerError):
    """No trial of the ledger has the given id."""


class DamagedLedgerError(LedgerError):
    """A file is damaged, is not a ledger, or has another format than this version reads."""


class EvaluationError(BotorchError, RuntimeError):
    """An objective cannot be evaluated: its executor is lost, or it fails every time."""


def level_of_caller() -> int:
    """``stacklevel`` for a warning that points to the call from outside of the package.

    Frames of PyTorch's decorators are skipped, too.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back and frame.f_globals["__name__"].split(".")[0] in ("botorch_calib", "torch"):
        level, frame = level + 1, frame.f_back
    return level
