"""Ambiguity sets; `base` defines their base classes and explains how to add a set."""
