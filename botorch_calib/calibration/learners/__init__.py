"""Learners of quantiles from a stream of conformity scores."""
