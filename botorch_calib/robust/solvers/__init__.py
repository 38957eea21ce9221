"""Solvers of the programs behind ambiguity sets."""
