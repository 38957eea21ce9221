"""Suites that compare calibrated with plain Bayesian optimization, and `smoke`."""
