"""Benchmarks: suites run each method on each problem with each seed, and can be resumed.

The README in this folder describes the files.
"""
