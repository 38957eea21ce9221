"""Suites with a context whose distribution is not known."""
