"""The clients' own tests, run against the classes of this package in place of theirs.

``make test-downstream`` fetches the tests at the versions that are installed, and runs them by
`plugin`. None of them is copied into this repository.
"""
