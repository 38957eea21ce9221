"""Archives: condensed results of a suite in one compressed file, committed with the code.

``benchmarks/results-archive/SUITE.jsonl.xz`` holds JSON lines. The first is a header, which states
what is kept and how it is rounded. A line with the key ``group`` gives what the replicates in the
lines below it have in common: problem, method, configuration, versions, number of initial points,
and the names of records that are left out. Lines are sorted, so that the same results make the same
bytes, and the file is replaced as a whole.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.framework.condensation import (
    ArchivedResult,
    ArchiveError,
    Condensation,
    restore,
)
from benchmarks.framework.config import config_hash
from benchmarks.framework.result import Result

FORMAT = 1
SUFFIX = ".jsonl.xz"

_SHARED = ("problem", "method", "num_initial", "config", "versions", "left_out")


class ReplicateKey(NamedTuple):
    """Names one replicate of a suite."""

    problem: str
    method: str
    seed: int


@dataclass(frozen=True)
class Group:
    """What some replicates have in common, as the text of its line."""

    text: str

    @cached_property
    def shared(self) -> dict[str, Any]:
        """The identity of its results, but for the seed."""
        shared: dict[str, Any] = json.loads(self.text)["group"]
        return shared

    @cached_property
    def config_hash(self) -> str:
        """Hash of the configuration that was run."""
        return config_hash(self.shared["config"])


@dataclass(frozen=True)
class Entry:
    """One condensed result.

    Args:
        group: What it shares with others.
        kept: Its seed, and what the condensation kept.
    """

    group: Group
    kept: Mapping[str, Any]

    @property
    def key(self) -> ReplicateKey:
        """Which replicate it is of."""
        shared = self.group.shared
        return ReplicateKey(shared["problem"], shared["method"], self.kept["seed"])

    @classmethod
    def of(cls, result: Result, condensation: Condensation) -> Entry:
        """Condense a result; raises `ArchiveError` with its name if it cannot be kept."""
        try:
            kept = {"seed": result.seed, **condensation.condense(result)}
            _line(kept)
        except (ValueError, TypeError, AttributeError) as error:
            raise ArchiveError(
                f"Seed {result.seed} of {result.method} on {result.problem} cannot be archived: "
                f"{error}. Run it again, or change what the suite's archive keeps."
            ) from error
        left_out = sorted(result.extras.keys() - kept["extras"].keys())
        shared = {name: getattr(result, name) for name in _SHARED[:-1]} | {"left_out": left_out}
        return cls(Group(_line({"group": shared})), kept)

    def result(self) -> ArchivedResult:
        """The result, as far as it is kept."""
        kept = {name: value for name, value in self.kept.items() if name != "seed"}
        return restore({**self.group.shared, "seed": self.kept["seed"]}, kept)


@dataclass(frozen=True)
class Archive:
    """The condensed results of a suite.

    Args:
        suite: Its name.
        statement: What is kept of each result, and how, in words.
        entries: The results.
    """

    suite: str
    statement: Mapping[str, str]
    entries: Mapping[ReplicateKey, Entry]

    def seeds(self, problem: str, method: str) -> set[int]:
        """The seeds of one method on one problem."""
        return self._seeds.get((problem, method), set())

    @cached_property
    def _seeds(self) -> dict[tuple[str, str], set[int]]:
        found: dict[tuple[str, str], set[int]] = {}
        for problem, method, seed in self.entries:
            found.setdefault((problem, method), set()).add(seed)
        return found

    def text(self) -> str:
        """All lines; the same for the same results, in whatever order they came."""
        header = {"archive": self.suite, "format": FORMAT, "kept": self.statement}
        return "".join(f"{line}\n" for line in [_line(header), *_lines(self.entries.values())])

    def to_bytes(self) -> bytes:
        """The contents of its file."""
        return lzma.compress(self.text().encode(), preset=9 | lzma.PRESET_EXTREME)


def archive_path(folder: Path, suite: str) -> Path:
    """Where the archive of a suite lies."""
    return folder / f"{suite}{SUFFIX}"


def read_archive(folder: Path, suite: str) -> Archive | None:
    """The archive of a suite; ``None`` if there is none.

    Raises:
        ArchiveError: If it is damaged, or is not the archive of this suite.
    """
    path = archive_path(folder, suite)
    try:
        stamp = path.stat()
    except FileNotFoundError:
        return None
    archive = _read(path, stamp.st_mtime_ns, stamp.st_ino)
    if archive.suite != suite:
        raise ArchiveError(f"{path.name} is the archive of suite {archive.suite!r}.")
    return archive


@lru_cache(maxsize=2)
def _read(path: Path, modified: int, inode: int) -> Archive:
    """Once for each version of a file, as a run asks for every replicate."""
    try:
        return _parse(lzma.decompress(path.read_bytes()).decode())
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArchiveError(
            f"The archive {path.name} cannot be read ({error}): restore it, for example by "
            "`git checkout`, or move it away."
        ) from None


def _parse(text: str) -> Archive:
    header, *lines = text.splitlines()
    head = json.loads(header)
    if head["format"] != FORMAT:
        raise ValueError(f"its format is {head['format']}, not {FORMAT}")
    entries: dict[ReplicateKey, Entry] = {}
    group: Group | None = None
    for line in lines:
        content = json.loads(line)
        if "group" in content:
            group = Group(line)
            if tuple(group.shared) != _SHARED:
                raise ValueError(f"a group states {sorted(group.shared)}")
            continue
        if group is None or not isinstance(content["seed"], int):
            raise ValueError("a result lacks its group or its seed")
        entry = Entry(group, content)
        if entry.key in entries:
            raise ValueError(f"{entry.key} is there twice")
        entry.result()
        entries[entry.key] = entry
    return Archive(head["archive"], dict(head["kept"]), entries)


def _lines(entries: Iterable[Entry]) -> Iterator[str]:
    def place(entry: Entry) -> tuple[str, str, str, int]:
        key = entry.key
        return (key.problem, key.method, entry.group.text, key.seed)

    for text, members in groupby(sorted(entries, key=place), key=lambda entry: entry.group.text):
        yield text
        yield from (_line(entry.kept) for entry in members)


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)
