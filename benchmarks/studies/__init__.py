"""Studies: experiments with one question and a report of their own, outside the suites."""
