"""Suites on delayed feedback."""
