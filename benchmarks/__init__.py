"""Benchmarks: problems times methods times seeds, one resumable result file for each.

``python -m benchmarks --help`` lists the commands. Every objective is *maximised*.
"""
