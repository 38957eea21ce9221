"""Is a model calibrated? Reports on what it stated against what came."""

from botorch_calib.diagnostics.evaluation import calibration_report
from botorch_calib.diagnostics.report import CalibrationReport

__all__ = ["CalibrationReport", "calibration_report"]
