"""The demonstration, ``python -m benchmarks.demo``."""
