"""Result files, one JSON per replicate, written whole or not at all; the archive behind them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.framework.archive import Archive, ReplicateKey, read_archive
from benchmarks.framework.config import config_hash
from benchmarks.framework.result import Named, Result, replicate_config

BENCHMARKS_DIR = Path(__file__).parents[1]
RESULTS_DIR = BENCHMARKS_DIR / "results"
ARCHIVES_DIR = BENCHMARKS_DIR / "results-archive"

# Suites whose archive serves another one as well: replicates of the same problem, method and seed
# with the same configuration are the same replicates.
LENT = {"decisions_budget": "decisions"}


class Status(Enum):
    """What there is of a replicate."""

    MISSING = "missing"
    FINISHED = "finished"
    CHANGED = "of another configuration"
    UNREADABLE = "unreadable"


@dataclass(frozen=True)
class ResultStore:
    """The files ``ROOT/SUITE/PROBLEM/METHOD/seed_XXXX.json``.

    Args:
        root: Their folder.
        archives: Folder of archives, which stand in for files that are not there; none by default.
    """

    root: Path = RESULTS_DIR
    archives: Path | None = None

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
        return self._read(suite, ReplicateKey(problem.name, method.name, seed), current)[0]

    def load(
        self, suite: str, problem: Named, method: Named, seeds: Collection[int] | None = None
    ) -> tuple[list[Result], int]:
        """The finished results of one method in order of seed, and how many were unfit.

        What is unfit cannot be read or is of another configuration. Only those of ``seeds`` are
        looked at, if given.

        Raises:
            ArchiveError: If there is an archive that cannot be read.
        """
        current = config_hash(replicate_config(problem, method))
        there = self._seeds(suite, problem.name, method.name)
        found = [
            self._read(suite, ReplicateKey(problem.name, method.name, seed), current)[1]
            for seed in sorted(there if seeds is None else there.intersection(seeds))
        ]
        results = [result for result in found if result is not None]
        return results, len(found) - len(results)

    def _read(self, suite: str, key: ReplicateKey, current: str) -> tuple[Status, Result | None]:
        """What there is of a replicate, and its result if that has the hash ``current``.

        The archive is for replicates without a file.
        """
        path = self.path(suite, *key)
        result: Result
        if path.exists():
            try:
                result = Result.from_json(path.read_text())
            except ValueError:
                return Status.UNREADABLE, None
            written = result.config_hash
        else:
            entries = [archive.entries.get(key) for archive in self._archives(suite)]
            entry = next((entry for entry in entries if entry is not None), None)
            if entry is None:
                return Status.MISSING, None
            result, written = entry.result(), entry.group.config_hash
        return (Status.FINISHED, result) if written == current else (Status.CHANGED, None)

    def _seeds(self, suite: str, problem: str, method: str) -> set[int]:
        """The seeds of a method on a problem that there is anything of."""
        folder = self.path(suite, problem, method, seed=0).parent
        return {
            *(int(path.stem.removeprefix("seed_")) for path in folder.glob("seed_*.json")),
            *(s for archive in self._archives(suite) for s in archive.seeds(problem, method)),
        }

    def _archives(self, suite: str) -> list[Archive]:
        """Its own archive and the one that is lent to it, as far as there are any."""
        if self.archives is None:
            return []
        names = [suite, *([LENT[suite]] if suite in LENT else [])]
        found = [read_archive(self.archives, name) for name in names]
        return [archive for archive in found if archive is not None]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name in the same folder, then rename it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
