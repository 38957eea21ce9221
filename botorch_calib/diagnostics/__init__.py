"""Diagnostics of calibration: reports that compare predictions with data, and an alarm."""

from botorch_calib.diagnostics.calibration_alarm import CalibrationAlarm
from botorch_calib.diagnostics.noise import NoiseDiagnosis, noise_diagnosis
from botorch_calib.diagnostics.report import CalibrationReport
from botorch_calib.diagnostics.report_makers import (
    calibration_report,
    report_from_moments,
    report_from_pits,
)

__all__ = [
    "CalibrationAlarm",
    "CalibrationReport",
    "NoiseDiagnosis",
    "calibration_report",
    "noise_diagnosis",
    "report_from_moments",
    "report_from_pits",
]
