"""The command line of studies: resumed runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.studies.command_line import resumed_runs

CELLS = [{"method": "a"}, {"method": "b"}]


@pytest.mark.parametrize("cut", ["", '{"seed": 1, "meth', '{"seed": 1, "method": "b", "y": 2.0}'])
def test_a_study_goes_on_from_whole_lines(tmp_path: Path, cut: str) -> None:
    """If a process is killed while it writes a line, this run is repeated."""
    kept = {"seed": 1, "method": "a", "y": 1.0}
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{json.dumps(kept)}\n{cut}", encoding="utf-8")
    asked = []

    def run(cell: Mapping[str, str], seed: int) -> dict[str, float]:
        asked.append((cell["method"], seed))
        return {"y": 3.0}

    for _ in range(2):  # the second call runs nothing
        runs = resumed_runs(path, [1], CELLS, run)
        assert runs == [kept, {"seed": 1, "method": "b", "y": 3.0}]
        assert [json.loads(line) for line in path.read_text().splitlines()] == runs
    assert asked == [("b", 1)]
