"""Bring the archive of a suite up to date with the local result files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.framework.archive import Archive, Entry, ReplicateKey, archive_path, read_archive
from benchmarks.framework.condensation import ArchiveError
from benchmarks.framework.config import config_hash
from benchmarks.framework.result import replicate_config
from benchmarks.framework.result_store import ResultStore, write_atomically
from benchmarks.framework.suite import Suite


@dataclass(frozen=True)
class ArchiveSummary:
    """What `update_archive` did.

    Args:
        path: The file.
        total: Number of results in it.
        added: How many of them are new or have changed.
        unfit: Number of local files that were left out: unreadable, or of another configuration.
        num_bytes: Its size.
    """

    path: Path
    total: int
    added: int
    unfit: int
    num_bytes: int

    def __str__(self) -> str:
        unfit = f", {self.unfit} unfit files left out" if self.unfit else ""
        size = f"{self.num_bytes / 1000:.0f} kB"
        return f"{self.path.name}: {self.total} results, {self.added} new{unfit}, {size}"


def update_archive(
    suite: Suite[Any, Any],
    store: ResultStore,
    seeds: Collection[int] | None = None,
    *,
    overwrite: bool = False,
) -> ArchiveSummary:
    """Write the archive of a suite from what it holds and from local results, which win.

    Local files may be written meanwhile, each of which appears as a whole: what comes too late is
    for the next call. The archive is replaced as a whole, and left alone if nothing is new.

    Args:
        suite: The suite.
        store: Its results, with a folder of archives.
        seeds: Seeds of the files that are taken; by default the suite's.
        overwrite: Write it from local results alone, whatever it held.

    Raises:
        ArchiveError: If the old archive cannot be read, holds results of other configurations or
            keeps other things of them than the suite now says, or if a local result holds what
            cannot be kept.
        FileNotFoundError: If there are no results.
    """
    if store.archives is None:
        raise ArchiveError("The store has no folder of archives.")
    statement = suite.archive.statement()
    old = None if overwrite else read_archive(store.archives, suite.name)
    held = {} if old is None else old.entries
    entries = dict(held)
    unfit = 0
    seeds = suite.seeds if seeds is None else seeds
    for problem in suite.problems:
        for method in suite.methods:
            files = ResultStore(store.root)
            results, bad = files.load(suite.name, problem, method, seeds)
            unfit += bad
            for result in results:
                entry = Entry.of(result, suite.archive)
                entries[entry.key] = entry
    _check(suite, old, statement, entries)
    if not entries:
        raise FileNotFoundError(f"There are no results of suite {suite.name!r} to archive.")
    path = archive_path(store.archives, suite.name)
    archive = Archive(suite.name, statement, entries)
    added = sum(held.get(key) != entry for key, entry in entries.items())
    # Another version of the library may compress the same lines into other bytes.
    if old is None or old.text() != archive.text():
        write_atomically(path, archive.to_bytes())
    return ArchiveSummary(path, len(entries), added, unfit, path.stat().st_size)


def _check(
    suite: Suite[Any, Any],
    old: Archive | None,
    statement: dict[str, str],
    entries: dict[ReplicateKey, Entry],
) -> None:
    """Refuse to mix results of several configurations, or kept in several ways."""
    remedy = "Move it away, or pass --overwrite to write it from local results alone."
    if old is not None and dict(old.statement) != statement:
        raise ArchiveError(
            f"The archive of {suite.name!r} keeps other things of a result than the suite now "
            f"says. {remedy}"
        )
    current = {
        (problem.name, method.name): config_hash(replicate_config(problem, method))
        for problem in suite.problems
        for method in suite.methods
    }
    stale = sum(
        current.get((key.problem, key.method)) != entry.group.config_hash
        for key, entry in entries.items()
    )
    if stale:
        raise ArchiveError(
            f"The archive of {suite.name!r} holds {stale} results of other configurations. {remedy}"
        )
