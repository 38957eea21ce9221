"""Grids of cases of which only some are in the fast tests; ``make test-slow`` runs the rest."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def mostly_slow(cases: Iterable[Any], kept: Collection[Any]) -> list[Any]:
    """All cases (tuples or single arguments); all except the ``kept`` ones are slow."""
    cases = [*cases]
    unknown = [case for case in kept if case not in cases]
    if unknown:  # they would run nowhere
        raise ValueError(f"`kept` has cases that are not among `cases`: {unknown}.")
    return [
        case
        if case in kept
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for case in cases
    ]
