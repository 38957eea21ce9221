"""Result files, one JSON per replicate, written whole or not at all; the archive behind them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from benchmarks.framework.archive import Archive, Entry, Replicate, read_archive
from benchmarks.framework.config import config_hash
from benchmarks.framework.result import Named, Result, replicate_config

BENCHMARKS_DIR = Path(__file__).parents[1]
RESULTS_DIR = BENCHMARKS_DIR / "results"
ARCHIVES_DIR = BENCHMARKS_DIR / "results-archive"


class Status(Enum):
    """What a result file says about a replicate."""

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
        path = self.path(suite, problem.name, method.name, seed)
        if not path.exists():
            entry = self._archived(suite).get(Replicate(problem.name, method.name, seed))
            if entry is None:
                return Status.MISSING
            fits = entry.group.config_hash == current
            return Status.FINISHED if fits else Status.CHANGED
        try:
            result = Result.from_json(path.read_text())
        except ValueError:
            return Status.UNREADABLE
        return Status.FINISHED if result.config_hash == current else Status.CHANGED

    def load(
        self, suite: str, problem: Named, method: Named, seeds: Collection[int] | None = None
    ) -> tuple[list[Result], int]:
        """The finished results of one method in order of seed, and how many were unfit.

        A file is unfit if it cannot be read or holds another configuration's result. Only those of
        ``seeds`` are looked at, if given. Seeds without a file are taken from the archive.

        Raises:
            ArchiveError: If there is an archive that cannot be read.
        """
        current = config_hash(replicate_config(problem, method))
        results: list[Result] = []
        unfit = 0
        with_file = set()
        for path in self._files(suite, problem.name, method.name):
            seed = seed_of(path)
            if seeds is not None and seed not in seeds:
                continue
            with_file.add(seed)
            try:
                result = Result.from_json(path.read_text())
            except ValueError:
                unfit += 1
                continue
            if result.config_hash == current:
                results.append(result)
            else:
                unfit += 1
        for entry in self._archived_of(suite, problem.name, method.name):
            seed = entry.key.seed
            if seed in with_file or (seeds is not None and seed not in seeds):
                continue
            if entry.group.config_hash == current:
                results.append(entry.result())
            else:
                unfit += 1
        return sorted(results, key=lambda result: result.seed), unfit

    def _archive(self, suite: str) -> Archive | None:
        return None if self.archives is None else read_archive(self.archives, suite)

    def _archived(self, suite: str) -> Mapping[Replicate, Entry]:
        archive = self._archive(suite)
        return {} if archive is None else archive.entries

    def _archived_of(self, suite: str, problem: str, method: str) -> list[Entry]:
        archive = self._archive(suite)
        return [] if archive is None else archive.of(problem, method)

    def _files(self, suite: str, problem: str, method: str) -> Iterator[Path]:
        return iter(sorted((self.root / suite / problem / method).glob("seed_*.json")))


def seed_of(path: Path) -> int:
    """The seed of a result file, by its name."""
    return int(path.stem.removeprefix("seed_"))


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
