"""Studies of one question each, with a report of their own; the runner's suites are elsewhere."""
