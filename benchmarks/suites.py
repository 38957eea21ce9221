"""The registry of the suites in `calibration`, `decisions`, `delay` and `robust`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.calibration import suites as calibration
from benchmarks.decisions import suites as decisions
from benchmarks.delay import suites as delay
from benchmarks.framework.suite import Suite
from benchmarks.robust import suites as robust


def by_name(suites: Iterable[Suite[Any, Any]]) -> dict[str, Suite[Any, Any]]:
    """Suites by name. Names have to be unique, since they name the files of results."""
    found: dict[str, Suite[Any, Any]] = {}
    for suite in suites:
        if suite.name in found:
            raise ValueError(f"There are two suites named {suite.name!r}.")
        found[suite.name] = suite
    return found


ROOMS = (calibration, decisions, delay, robust)

SUITES = by_name([suite for room in ROOMS for suite in room.SUITES])


def get_suite(name: str) -> Suite[Any, Any]:
    """Look a suite up by name."""
    if name not in SUITES:
        raise KeyError(f"No suite {name!r}; there are {sorted(SUITES)}.")
    return SUITES[name]
