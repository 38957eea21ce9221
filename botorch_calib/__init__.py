"""Calibrated, delay-aware and distributionally robust Bayesian optimization for BoTorch."""
