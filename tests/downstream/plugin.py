"""A plugin of pytest that puts our classes in the place of a client's, and knows what differs.

``deviations.toml`` lists the tests that must fail, each with its reason. One of them that passes
fails the run, and so does an entry that no test matches.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.downstream.substitutes import SUBSTITUTES

DEVIATIONS = Path(__file__).with_name("deviations.toml")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--client", required=True, choices=[*SUBSTITUTES])


def pytest_configure(config: pytest.Config) -> None:
    SUBSTITUTES[config.getoption("--client")]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests that must fail, by ends of their names, parameters left out or not."""
    client = config.getoption("--client")
    unmatched = []
    for entry in tomllib.loads(DEVIATIONS.read_text(encoding="utf-8")).get(client, []):
        mark = pytest.mark.xfail(strict=True, reason=entry["reason"])
        for test in entry["tests"]:
            found = [
                item
                for item in items
                if item.nodeid.endswith(test) or item.nodeid.partition("[")[0].endswith(test)
            ]
            unmatched += [] if found else [test]
            for item in found:
                item.add_marker(mark)
    if unmatched:
        raise pytest.UsageError(f"{DEVIATIONS.name} lists tests that {client} has not: {unmatched}")
