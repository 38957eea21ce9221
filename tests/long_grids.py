"""Grids of cases too long for every run: the rest of them runs under ``make test-slow``."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """All cases, tuples or single arguments, of which only ``kept`` ones are not slow."""
    return [
        case
        if case in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
