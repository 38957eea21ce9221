"""Studies of one question each, with a report of their own; none is a suite of the registry."""
