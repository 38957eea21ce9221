"""Decisions on stated probabilities: how often they violate a limit, and what they earn."""
