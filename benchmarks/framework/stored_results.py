"""Results on disk: lines of JSON with the data that reports need.

Each finished replicate is appended to ``results/SUITE.jsonl``, which git ignores. The archive
``results-archive/SUITE.jsonl.xz`` is committed; it has the same lines, sorted and compressed.
The first line of a file is a header, which states what is kept and how it is rounded. A line with
the key ``group`` has what the replicates in the lines below it have in common: problem, method,
configuration, versions, number of initial points, and the names of extras that are left out.

A full result takes some kilobytes, mostly for points and digits that no table needs. A
`Condensation` states which fields are kept, and how they are rounded. It may also derive extras
from the full result, if rounding could change a flag, a count or a mean. An access to data that
were left out raises an error.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn

from benchmarks.framework.config import config_hash
from benchmarks.framework.metrics import regret_evaluated
from benchmarks.framework.replicate_result import Collected, Result

BENCHMARKS_DIR = Path(__file__).parents[1]
RESULTS_DIR = BENCHMARKS_DIR / "results"
ARCHIVES_DIR = BENCHMARKS_DIR / "results-archive"

FORMAT = 1
ARCHIVE_SUFFIX = ".jsonl.xz"

# Fields of a result that are the same for all replicates of a group.
_SHARED = ("problem", "method", "num_initial", "config", "versions")
# The other fields of a result, except for its seed and extras.
_TRACES = tuple(f.name for f in fields(Result) if f.name not in (*_SHARED, "seed", "extras"))

Trace = Sequence[float | None]


class StoredResultsError(ValueError):
    """Raised if a file of results cannot be read or used, or if a result cannot be stored."""


# ------------------------------------------------------------ what is kept of a result


@dataclass(frozen=True)
class Encoding:
    """A way to store a sequence of numbers as JSON, which `decode` can read.

    Args:
        words: A description of the stored numbers, such as their rounding.
        encode: Maps a sequence to its JSON.
    """

    words: str
    encode: Callable[[Trace], Any]


def _each(round_one: Callable[[float], float], values: Trace) -> list[float | None]:
    return [None if v is None else round_one(v) for v in values]


def _flags(values: Trace) -> str:
    if unknown := [v for v in values if v not in (0.0, 1.0, None)]:
        raise StoredResultsError(f"Flags are 0, 1 or missing, got {unknown[0]!r}.")
    return "".join("-" if v is None else str(int(v)) for v in values)


def _average(values: Trace, digits: int) -> dict[str, float]:
    total = math.fsum(v for v in values if v is not None)
    return {"mean": float(f"{total / max(len(values), 1):.{digits}g}"), "length": len(values)}


EXACT = Encoding("exact", list)

# Zeros and ones, as one character each, such as "0110-"; a dash is a missing value.
FLAGS = Encoding("exact (0 or 1)", _flags)


def significant(digits: int) -> Encoding:
    """An encoding that rounds to significant digits, for numbers of any size, such as regrets."""
    return Encoding(
        f"{digits} significant digits", partial(_each, lambda v: float(f"{v:.{digits}g}"))
    )


def decimals(number: int) -> Encoding:
    """An encoding that rounds to decimals, for numbers that are added, such as probabilities."""
    return Encoding(f"{number} decimals", partial(_each, lambda v: round(v, number)))


def ceiling(number: int) -> Encoding:
    """An encoding that rounds up to decimals, for comparisons ``v <= level``.

    The result of a comparison is preserved if the level has at most this number of decimals.
    """
    unit = 10**number
    return Encoding(
        f"rounded up to {number} decimals", partial(_each, lambda v: math.ceil(v * unit) / unit)
    )


def average(digits: int = 4) -> Encoding:
    """An encoding that replaces each number by the mean, for means, sums and lengths."""
    words = f"each number replaced by the mean, {digits} significant digits"
    return Encoding(words, partial(_average, digits=digits))


def decode(kept: Any) -> Any:
    """Return the sequence that an `Encoding` has stored."""
    if kept is None or isinstance(kept, list):
        return kept
    if isinstance(kept, str) and set(kept) <= set("01-"):
        return [None if c == "-" else float(c) for c in kept]
    if isinstance(kept, dict) and kept.keys() == {"mean", "length"}:
        return [float(kept["mean"])] * int(kept["length"])
    raise StoredResultsError(f"{kept!r:.80} is not a stored sequence.")


class Derived(NamedTuple):
    """An extra that is computed from a full result (``None`` if undefined), and its encoding."""

    trace: Callable[[Result], Trace | None]
    encoding: Encoding


@dataclass(frozen=True)
class Condensation:
    """The data of a result that are kept, in addition to its group and seed.

    Args:
        fields: Encodings of the fields of `Result` that are kept, by name.
        extras: Encodings of extras, by name. A result need not have all of them.
        derived: Extras that are computed from the full result, by name.
        others: Encoding of all other extras (default: they are left out).
    """

    fields: Mapping[str, Encoding] = field(default_factory=dict)
    extras: Mapping[str, Encoding] = field(default_factory=dict)
    derived: Mapping[str, Derived] = field(default_factory=dict)
    others: Encoding | None = None

    def __post_init__(self) -> None:
        if unknown := sorted(self.fields.keys() - set(_TRACES)):
            raise ValueError(f"A condensation can keep the fields {list(_TRACES)}, not {unknown}.")

    def statement(self) -> dict[str, str]:
        """A description of the encodings, by the names of fields and extras."""
        derived = {name: made.encoding for name, made in self.derived.items()}
        extras = {f"extras.{name}": how for name, how in {**self.extras, **derived}.items()}
        kept = {name: how.words for name, how in {**self.fields, **extras}.items()}
        others = "left out" if self.others is None else self.others.words
        return {**kept, "other extras": others, "all else": "left out"}

    def condense(self, result: Result) -> dict[str, Any]:
        """Return the fields and extras of a result that are kept, as JSON."""
        kept: dict[str, Any] = {}
        for name, encoding in self.fields.items():
            values = getattr(result, name)
            kept[name] = None if values is None else encoding.encode(values)
        extras: dict[str, Any] = {}
        for name, values in result.extras.items():
            how = self.extras.get(name, self.others)
            if how is not None:
                extras[name] = how.encode(values)
        for name, made in self.derived.items():
            trace = made.trace(result)
            if trace is not None:
                extras[name] = made.encoding.encode(trace)
        return {**kept, "extras": extras}


# The default of suites keeps regrets, times and extras, but not points and outcomes.
REGRETS = Condensation(
    fields={
        "inference_by_outcome": EXACT,
        "inference_by_mean": EXACT,
        "regret_by_outcome": significant(4),
        "regret_by_mean": significant(4),
        "fit_seconds": average(),
        "acquisition_seconds": average(),
    },
    # PITs are compared with levels of two decimals.
    extras={"covered": FLAGS, "objective_covered": FLAGS, "pit": ceiling(3)},
    derived={"regret_evaluated": Derived(regret_evaluated, significant(4))},
    others=significant(4),
)


class LeftOut:
    """A placeholder for data that are not kept: any use raises `StoredResultsError`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise StoredResultsError(
            f"Stored results do not hold the {self.name}: let the suite's condensation keep it, "
            "and run the suite again."
        )

    __getitem__ = __len__ = __iter__ = __bool__ = __array__ = __contains__ = _refuse


# ------------------------------------------------------------ lines of a file


class ReplicateKey(NamedTuple):
    """Identifies one replicate of a suite."""

    problem: str
    method: str
    seed: int


@dataclass(frozen=True)
class Group:
    """What some replicates have in common, as the text of a line in the file."""

    text: str

    @cached_property
    def shared(self) -> dict[str, Any]:
        """The fields that the results share, and ``left_out``: the names of missing extras."""
        shared: dict[str, Any] = json.loads(self.text)["group"]
        return shared

    @cached_property
    def config_hash(self) -> str:
        """Hash of the configuration that was run."""
        return config_hash(self.shared["config"])


@dataclass(frozen=True)
class Entry:
    """One condensed result: its group, and its seed and other data that are kept."""

    group: Group
    kept: Mapping[str, Any]

    @property
    def key(self) -> ReplicateKey:
        """The key of its replicate."""
        shared = self.group.shared
        return ReplicateKey(shared["problem"], shared["method"], self.kept["seed"])

    @classmethod
    def of(cls, result: Result, condensation: Condensation) -> Entry:
        """Condense a result; raise `StoredResultsError` if it cannot be stored."""
        try:
            kept = {"seed": result.seed, **condensation.condense(result)}
            _line(kept)
        except (ValueError, TypeError, AttributeError) as error:
            raise StoredResultsError(
                f"Seed {result.seed} of {result.method} on {result.problem} cannot be stored: "
                f"{error}. Change the suite's condensation."
            ) from error
        left_out = sorted(result.extras.keys() - kept["extras"].keys())
        shared = {name: getattr(result, name) for name in _SHARED} | {"left_out": left_out}
        return cls(Group(_line({"group": shared})), kept)

    def result(self) -> Result:
        """The result, with `LeftOut` in place of data that are not kept."""
        named = {name: self.group.shared[name] for name in _SHARED}
        traces: dict[str, Any] = {name: LeftOut(f"field {name!r}") for name in _TRACES}
        extras: dict[str, Any] = {
            name: LeftOut(f"record {name!r}") for name in self.group.shared["left_out"]
        }
        for name, value in self.kept.items():
            if name == "extras":
                extras |= {extra: decode(kept) for extra, kept in value.items()}
            elif name != "seed":
                traces[name] = decode(value)
        return Result(**named, **traces, seed=self.kept["seed"], extras=extras)


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, separators=(",", ":"), allow_nan=False)


def _header(suite: str, condensation: Condensation) -> str:
    return _line({"archive": suite, "format": FORMAT, "kept": condensation.statement()})


def _sorted_lines(entries: Iterable[Entry]) -> Iterator[str]:
    """The lines of ``entries``, in an order that does not depend on the order of ``entries``."""

    def place(entry: Entry) -> tuple[str, str, str, int]:
        key = entry.key
        return (key.problem, key.method, entry.group.text, key.seed)

    for text, members in groupby(sorted(entries, key=place), key=lambda entry: entry.group.text):
        yield text
        yield from (_line(entry.kept) for entry in members)


Entries = dict[ReplicateKey, Entry]


def read_entries(path: Path, suite: str) -> tuple[dict[str, str], Entries]:
    """Return a file's statement of what is kept, and its results.

    If several lines are for the same replicate, the last of them counts. An incomplete last line,
    such as one left by an interrupted run, is ignored.

    Raises:
        StoredResultsError: If the file is damaged or belongs to another suite.
    """
    if not path.exists():
        return {}, {}
    try:
        content = path.read_bytes()
        text = (lzma.decompress(content) if path.suffix == ".xz" else content).decode()
        lines = text.splitlines() if text.endswith("\n") else text.splitlines()[:-1]
        empty: dict[str, Any] = {"format": FORMAT, "archive": suite, "kept": {}}
        head: dict[str, Any] = json.loads(lines[0]) if lines else empty
        if (head["format"], head["archive"]) != (FORMAT, suite):
            raise ValueError(f"it has the format {head['format']} of suite {head['archive']!r}")
        found: Entries = {}
        group: Group | None = None
        for line in lines[1:]:
            kept = json.loads(line)
            if "group" in kept:
                group = Group(line)
                continue
            if group is None or not isinstance(kept["seed"], int):
                raise ValueError("a result lacks its group or its seed")
            entry = Entry(group, kept)
            entry.result()
            found[entry.key] = entry
    except (lzma.LZMAError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoredResultsError(
            f"The results in {path.name} cannot be read ({error}): restore the file, for example "
            "by `git checkout`, or move it away."
        ) from None
    return dict(head["kept"]), found


# ------------------------------------------------------------ the files of all suites


@dataclass(frozen=True)
class ResultStore:
    """The files of results of all suites.

    Args:
        results: Folder of the files to which runs add. They take precedence over archives.
        archives: Folder of archives.
    """

    results: Path = RESULTS_DIR
    archives: Path = ARCHIVES_DIR

    def path(self, suite: str) -> Path:
        """The file to which a run adds results."""
        return self.results / f"{suite}.jsonl"

    def archive_path(self, suite: str) -> Path:
        """The archive of a suite."""
        return self.archives / f"{suite}{ARCHIVE_SUFFIX}"

    def entries(self, suite: Any) -> Entries:
        """All results of a suite, whatever their configuration."""
        return read_entries(self.archive_path(suite.name), suite.name)[1] | self._added(suite)

    def _added(self, suite: Any) -> Entries:
        """The results that runs have added; `StoredResultsError` if the file keeps other data."""
        path = self.path(suite.name)
        stated, found = read_entries(path, suite.name)
        _check_statement(suite, path, stated)
        return found

    def add(self, suite: Any, result: Result) -> None:
        """Add a result to the file; if the call is interrupted, earlier results are preserved."""
        entry = Entry.of(result, suite.archive)
        path = self.path(suite.name)
        lines = [entry.group.text, _line(entry.kept)]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            cut_incomplete_line(file)
            if not file.tell():
                lines.insert(0, _header(suite.name, suite.archive))
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def collect(self, suite: Any, seeds: Collection[int] | None = None) -> tuple[Collected, int]:
        """Results by problem and method, in order of seed, and the number of outdated results.

        Outdated results have another configuration than the suite; they are left out, and so are
        methods without results. If ``seeds`` are given, other seeds are ignored.
        """
        by_run: dict[tuple[str, str], list[Entry]] = {}
        for key, entry in sorted(self.entries(suite).items()):
            if seeds is None or key.seed in seeds:
                by_run.setdefault((key.problem, key.method), []).append(entry)
        collected: dict[str, dict[str, list[Result]]] = {}
        unfit = 0
        for (problem, method), current in suite.config_hashes().items():
            there = by_run.get((problem, method), [])
            fit = [entry.result() for entry in there if entry.group.config_hash == current]
            unfit += len(there) - len(fit)
            if fit:
                collected.setdefault(problem, {})[method] = fit
        return collected, unfit

    def archive(self, suite: Any, seeds: Collection[int] | None = None) -> str:
        """Write the results of runs into the archive, and return a summary of it.

        Args:
            suite: The suite.
            seeds: Seeds of the results that are added (default: the seeds of the suite).

        Raises:
            StoredResultsError: If a file cannot be read or keeps other data than the suite states;
                if a result has another configuration than the suite; or if there are no results.
        """
        path = self.archive_path(suite.name)
        stated, held = read_entries(path, suite.name)
        _check_statement(suite, path, stated)
        seeds = suite.seeds if seeds is None else seeds
        entries = held | {k: e for k, e in self._added(suite).items() if k.seed in seeds}
        if not entries:
            raise StoredResultsError(f"There are no results of suite {suite.name!r} to archive.")
        current = suite.config_hashes()
        unfit = sum(current.get(k[:2]) != e.group.config_hash for k, e in entries.items())
        if unfit:
            raise StoredResultsError(
                f"{unfit} results of {suite.name!r} have other configurations: move the archive "
                f"or {self.path(suite.name).name} away."
            )
        lines = [_header(suite.name, suite.archive), *_sorted_lines(entries.values())]
        text = "".join(f"{line}\n" for line in lines)
        # An unchanged archive is not written: another version of lzma may give other bytes.
        if entries != held:
            write_atomically(path, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        added = sum(held.get(key) != entry for key, entry in entries.items())
        size = path.stat().st_size / 1000
        return f"{path.name}: {len(entries)} results, {added} new, {size:.0f} kB"


def _check_statement(suite: Any, path: Path, stated: Mapping[str, str]) -> None:
    if stated and stated != suite.archive.statement():
        raise StoredResultsError(
            f"{path.name} contains other data than suite {suite.name!r} now stores: move the file "
            "away."
        )


def cut_incomplete_line(file: BinaryIO) -> None:
    """Remove the incomplete last line that an interrupted run has left in a file of mode "ab+"."""
    if not file.tell():
        return
    file.seek(-1, os.SEEK_END)
    if file.read() != b"\n":
        file.seek(0)
        file.seek(file.truncate(file.read().rfind(b"\n") + 1))


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
