"""Is a model calibrated? Reports on what it stated against what came."""

from botorch_calib.diagnostics.report import CalibrationReport, calibration_report

__all__ = ["CalibrationReport", "calibration_report"]
