"""Benchmarks: problems times methods times seeds, one resumable result file for each.

The README beside this file says where things are.
"""
