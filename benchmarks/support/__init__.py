"""Which models of BoTorch are supported, found by running each: ``python -m benchmarks support``.

=============== ====================================================================================
file            content
=============== ====================================================================================
``models``      a small instance of each model class, and what to use instead of some
``operations``  what is tried with each
``matrix``      the table of verdicts, in the README and on a page of the documentation
=============== ====================================================================================
"""
