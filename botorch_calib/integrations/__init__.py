"""Calibrated models inside other frameworks, each behind its extra."""
