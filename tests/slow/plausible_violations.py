"""How many violations a loop at a level of 0.9 may have if it keeps the level."""

import math


def most_violations(num: int) -> float:
    """A tenth of ``num`` independent rounds, plus two standard deviations of this count."""
    return 0.1 * num + 2.0 * math.sqrt(0.1 * 0.9 * num)
