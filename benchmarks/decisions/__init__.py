"""The suites on chance constraints."""
