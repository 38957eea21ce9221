"""Thinned grids keep what they say they keep."""

from functools import partial

import pytest

from tests.long_grids import mostly_slow


def test_a_kept_case_is_among_the_cases() -> None:
    """A partial made anew, say, equals none of the cases, so that nothing would be kept."""
    assert mostly_slow(iter([1, 2]), {2})[1] == 2
    with pytest.raises(ValueError, match="not among `cases`"):
        mostly_slow([partial(int, 1)], [partial(int, 1)])
