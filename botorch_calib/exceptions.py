"""Warnings of the package; its errors are those of ``botorch.exceptions``."""

from botorch.exceptions.warnings import BotorchWarning


class CalibrationWarning(BotorchWarning):
    """A statement on calibration that rests on too few observations to be relied on."""
