"""Optimisation of acquisition functions of any BoTorch model over a box."""

from botorch_calib.optim.robust_search import optimize_robust

__all__ = ["optimize_robust"]
