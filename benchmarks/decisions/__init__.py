"""The suite on chance constraints.

============= =================================================================
file          content
============= =================================================================
``suites``    the suite
``tasks``     its problems: an objective and an outcome with a limit
``methods``   its methods: what states the quantile
``replicate`` its loop: a certified choice in each round
``analysis``  what runs are judged by, and rewards at equal rates of violations
``report``    its report
============= =================================================================
"""
