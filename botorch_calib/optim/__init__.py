"""Searches in a box, and their helpers, which know BoTorch's models alone."""

from botorch_calib.optim.robust_search import optimize_robust

__all__ = ["optimize_robust"]
