"""The benchmarks' folders: shared code does not depend on suites, and the README is current."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.documentation import IN_CHECKOUT, run_blocks

ROOT = Path(__file__).parents[2] / "benchmarks"
# Folders that several folders of suites use.
SHARED = ("baselines", "framework", "problems", "theory")


def imported_rooms(path: Path) -> set[str]:
    """The folders of `benchmarks` from which a file imports, anywhere in its text."""
    names: list[str] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("benchmarks.")}


@pytest.mark.parametrize("name", SHARED)
def test_what_is_shared_knows_no_room(name: str) -> None:
    for path in (ROOT / name).glob("*.py"):
        assert imported_rooms(path) <= {name}, path


def test_rooms_with_suites_do_not_know_the_registry() -> None:
    for room in ("calibration", "decisions", "delay", "robust"):
        for path in (ROOT / room).glob("*.py"):
            assert not imported_rooms(path) & {"suites", "perf", "demo", "studies"}, path


def test_the_readme_names_what_is_there(capsys: pytest.CaptureFixture[str]) -> None:
    readme = ROOT / "README.md"
    for path in re.findall(
        r"`((?:framework|protocols|studies|perf|demo)/[\w.]*)`", readme.read_text()
    ):
        assert (ROOT / path).exists(), path
    if IN_CHECKOUT:  # the source distribution lacks archives
        run_blocks(readme)
        assert capsys.readouterr().out.count("\n") == 15
