"""Suites under a context whose distribution is not known."""
