"""Result files: one JSON per replicate, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.framework.config import config_hash
from benchmarks.framework.result import Named, Result, replicate_config

BENCHMARKS_DIR = Path(__file__).parents[1]
RESULTS_DIR = BENCHMARKS_DIR / "results"


class Status(Enum):
    """What a result file says about a replicate."""

    MISSING = "missing"
    FINISHED = "finished"
    CHANGED = "of another configuration"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class ResultStore:
    """The files ``ROOT/SUITE/PROBLEM/METHOD/seed_XXXX.json``."""

    root: Path = RESULTS_DIR

    def path(self, suite: str, problem: str, method: str, seed: int) -> Path:
        """Where a replicate is kept."""
        return self.root / suite / problem / method / f"seed_{seed:04d}.json"

    def write(self, suite: str, result: Result) -> Path:
        """Keep a result; an interrupted call leaves the old file, or none, never half of one."""
        path = self.path(suite, result.problem, result.method, result.seed)
        write_atomically(path, result.to_json() + "\n")
        return path

    def status(self, suite: str, problem: Named, method: Named, seed: int) -> Status:
        """Whether a replicate is finished under the present configuration."""
        current = config_hash(replicate_config(problem, method))
        path = self.path(suite, problem.name, method.name, seed)
        if not path.exists():
            return Status.MISSING
        try:
            result = Result.from_json(path.read_text())
        except ValueError:
            return Status.UNREADABLE
        return Status.FINISHED if result.config_hash == current else Status.CHANGED

    def load(
        self, suite: str, problem: Named, method: Named, seeds: Collection[int] | None = None
    ) -> tuple[list[Result], int]:
        """The finished results of one method in order of seed, and how many files were unfit.

        A file is unfit if it cannot be read or holds another configuration's result. Only those of
        ``seeds`` are looked at, if given.
        """
        current = config_hash(replicate_config(problem, method))
        results, unfit = [], 0
        for path in self._files(suite, problem.name, method.name):
            if seeds is not None and seed_of(path) not in seeds:
                continue
            try:
                result = Result.from_json(path.read_text())
            except ValueError:
                unfit += 1
                continue
            if result.config_hash == current:
                results.append(result)
            else:
                unfit += 1
        return sorted(results, key=lambda result: result.seed), unfit

    def _files(self, suite: str, problem: str, method: str) -> Iterator[Path]:
        return iter(sorted((self.root / suite / problem / method).glob("seed_*.json")))


def seed_of(path: Path) -> int:
    """The seed of a result file, by its name."""
    return int(path.stem.removeprefix("seed_"))


def write_atomically(path: Path, text: str) -> None:
    """Write a file under a temporary name in the same folder, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
