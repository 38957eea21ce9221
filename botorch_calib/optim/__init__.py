"""Searches in a box for any BoTorch model, and their helpers."""

from botorch_calib.optim.robust_search import optimize_robust

__all__ = ["optimize_robust"]
