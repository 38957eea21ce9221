"""Is a model calibrated? Reports that compare stated distributions with observations."""

from botorch_calib.diagnostics.noise import NoiseDiagnosis, noise_diagnosis
from botorch_calib.diagnostics.report import (
    CalibrationReport,
    calibration_report,
    report_from_moments,
    report_from_pits,
)

__all__ = [
    "CalibrationReport",
    "NoiseDiagnosis",
    "calibration_report",
    "noise_diagnosis",
    "report_from_moments",
    "report_from_pits",
]
