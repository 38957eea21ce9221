"""Results on disk: lines of JSON, condensed to what reports read.

``results/SUITE.jsonl`` grows by each replicate that ends and is ignored by git;
``results-archive/SUITE.jsonl.xz``, which is committed, holds the same lines sorted and compressed.
The first line of a file is a header, which states what is kept and how it is rounded. A line with
the key ``group`` gives what the replicates in the lines below it have in common: problem, method,
configuration, versions, number of initial points, and the names of records that are left out.

A result as it is made takes some kilobytes, most of it points and digits that no table reads. A
`Condensation` names the fields that are kept and how, and traces that are derived from the whole
result before the rest is left out, where rounding the numbers behind them could change a flag, a
count or a mean. Reading what is left out raises an error, so that nothing is computed from its
absence.
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
from typing import Any, NamedTuple, NoReturn

from benchmarks.framework.config import config_hash
from benchmarks.framework.metrics import regret_evaluated
from benchmarks.framework.replicate_result import Collected, Result

BENCHMARKS_DIR = Path(__file__).parents[1]
RESULTS_DIR = BENCHMARKS_DIR / "results"
ARCHIVES_DIR = BENCHMARKS_DIR / "results-archive"

FORMAT = 1
ARCHIVE_SUFFIX = ".jsonl.xz"

# Fields of a result that replicates share, and its other ones apart from seed and extras.
_SHARED = ("problem", "method", "num_initial", "config", "versions")
_TRACES = tuple(f.name for f in fields(Result) if f.name not in (*_SHARED, "seed", "extras"))

Trace = Sequence[float | None]


class StoredResultsError(ValueError):
    """A file of results cannot be read or used, or a result cannot be kept."""


# ------------------------------------------------------------ what is kept of a result


@dataclass(frozen=True)
class Encoding:
    """How a trace is kept as JSON; `decode` reads what any of them makes.

    Args:
        words: What is lost, in words.
        encode: Makes JSON of a trace.
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

# Zeros and ones, one character each, such as "0110-", where a dash is missing.
FLAGS = Encoding("exact (0 or 1)", _flags)


def significant(digits: int) -> Encoding:
    """Rounded to significant digits: for numbers of any magnitude, such as regrets."""
    return Encoding(
        f"{digits} significant digits", partial(_each, lambda v: float(f"{v:.{digits}g}"))
    )


def decimals(number: int) -> Encoding:
    """Rounded to decimals: for numbers whose sums count, such as probabilities."""
    return Encoding(f"{number} decimals", partial(_each, lambda v: round(v, number)))


def ceiling(number: int) -> Encoding:
    """Rounded up to decimals, so that ``v <= level`` stays as it is for levels with no more."""
    unit = 10**number
    return Encoding(
        f"rounded up to {number} decimals", partial(_each, lambda v: math.ceil(v * unit) / unit)
    )


def average(digits: int = 4) -> Encoding:
    """The mean in place of each number: means, sums and lengths stay."""
    words = f"each number replaced by the mean, {digits} significant digits"
    return Encoding(words, partial(_average, digits=digits))


def decode(kept: Any) -> Any:
    """A trace from what an `Encoding` made of it."""
    if kept is None or isinstance(kept, list):
        return kept
    if isinstance(kept, str) and set(kept) <= set("01-"):
        return [None if c == "-" else float(c) for c in kept]
    if isinstance(kept, dict) and kept.keys() == {"mean", "length"}:
        return [float(kept["mean"])] * int(kept["length"])
    raise StoredResultsError(f"{kept!r:.80} is no trace.")


class Derived(NamedTuple):
    """A trace that is computed from a whole result (``None`` where it has none), and kept."""

    trace: Callable[[Result], Trace | None]
    encoding: Encoding


@dataclass(frozen=True)
class Condensation:
    """What is kept of a result in addition to problem, method, seed, configuration and versions.

    Args:
        fields: The fields of `Result` that are kept, and how.
        extras: Likewise for its extras, of those that it has.
        derived: Extras that are made from the whole result.
        others: How extras are kept that ``extras`` does not name; by default they are left out.
    """

    fields: Mapping[str, Encoding] = field(default_factory=dict)
    extras: Mapping[str, Encoding] = field(default_factory=dict)
    derived: Mapping[str, Derived] = field(default_factory=dict)
    others: Encoding | None = None

    def __post_init__(self) -> None:
        if unknown := sorted(self.fields.keys() - set(_TRACES)):
            raise ValueError(f"A condensation can keep the fields {list(_TRACES)}, not {unknown}.")

    def statement(self) -> dict[str, str]:
        """What is kept, and how, in words."""
        derived = {name: made.encoding for name, made in self.derived.items()}
        extras = {f"extras.{name}": how for name, how in {**self.extras, **derived}.items()}
        kept = {name: how.words for name, how in {**self.fields, **extras}.items()}
        others = "left out" if self.others is None else self.others.words
        return {**kept, "other extras": others, "all else": "left out"}

    def condense(self, result: Result) -> dict[str, Any]:
        """The kept traces of a result, as JSON."""
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


# Of suites that do not say otherwise: regrets and what is recorded, without points and outcomes.
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
    """Stands for a trace that is not kept: any use of it raises `StoredResultsError`."""

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
        """The identity of its results, but for the seed, and ``left_out``."""
        shared: dict[str, Any] = json.loads(self.text)["group"]
        return shared

    @cached_property
    def config_hash(self) -> str:
        """Hash of the configuration that was run."""
        return config_hash(self.shared["config"])


@dataclass(frozen=True)
class Entry:
    """One condensed result: what it shares with others, its seed, and what is kept of it."""

    group: Group
    kept: Mapping[str, Any]

    @property
    def key(self) -> ReplicateKey:
        """Which replicate it is of."""
        shared = self.group.shared
        return ReplicateKey(shared["problem"], shared["method"], self.kept["seed"])

    @classmethod
    def of(cls, result: Result, condensation: Condensation) -> Entry:
        """Condense a result; raises `StoredResultsError` with its name if it cannot be kept."""
        try:
            kept = {"seed": result.seed, **condensation.condense(result)}
            _line(kept)
        except (ValueError, TypeError, AttributeError) as error:
            raise StoredResultsError(
                f"Seed {result.seed} of {result.method} on {result.problem} cannot be kept: "
                f"{error}. Change what the suite's condensation keeps."
            ) from error
        left_out = sorted(result.extras.keys() - kept["extras"].keys())
        shared = {name: getattr(result, name) for name in _SHARED} | {"left_out": left_out}
        return cls(Group(_line({"group": shared})), kept)

    def result(self) -> Result:
        """The result, as far as it is kept."""
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
    """The same for the same results, in whatever order they came."""

    def place(entry: Entry) -> tuple[str, str, str, int]:
        key = entry.key
        return (key.problem, key.method, entry.group.text, key.seed)

    for text, members in groupby(sorted(entries, key=place), key=lambda entry: entry.group.text):
        yield text
        yield from (_line(entry.kept) for entry in members)


Entries = dict[ReplicateKey, Entry]


def read_entries(path: Path, suite: str) -> tuple[dict[str, str], Entries]:
    """What a file states to keep, and its results; of two lines on a replicate the later counts.

    Raises:
        StoredResultsError: If the file is damaged, or is of another suite. What an interrupted
            run left of the last line of a file that is not compressed is no damage.
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
        results: Folder of the files that runs add to, whose lines count before those of archives.
        archives: Folder of archives.
    """

    results: Path = RESULTS_DIR
    archives: Path = ARCHIVES_DIR

    def path(self, suite: str) -> Path:
        """The file that a run adds to."""
        return self.results / f"{suite}.jsonl"

    def archive_path(self, suite: str) -> Path:
        """The archive of a suite."""
        return self.archives / f"{suite}{ARCHIVE_SUFFIX}"

    def entries(self, suite: Any) -> Entries:
        """All results of a suite, whatever their configuration."""
        return read_entries(self.archive_path(suite.name), suite.name)[1] | self._added(suite)

    def _added(self, suite: Any) -> Entries:
        """What runs have added; raises `StoredResultsError` if other things were kept."""
        path = self.path(suite.name)
        stated, found = read_entries(path, suite.name)
        _check_statement(suite, path, stated)
        return found

    def add(self, suite: Any, result: Result) -> None:
        """Keep a result; an interrupted call leaves the older ones as they are."""
        entry = Entry.of(result, suite.archive)
        path = self.path(suite.name)
        lines = [entry.group.text, _line(entry.kept)]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read() != b"\n":  # what an interrupted run left
                    file.seek(0)
                    file.seek(file.truncate(file.read().rfind(b"\n") + 1))
            if not file.tell():
                lines.insert(0, _header(suite.name, suite.archive))
            file.write("".join(f"{line}\n" for line in lines).encode())
            file.flush()
            os.fsync(file.fileno())

    def collect(self, suite: Any, seeds: Collection[int] | None = None) -> tuple[Collected, int]:
        """Results by problem and method, in order of seed, and how many are unfit.

        Results are unfit under another configuration than the suite's present one. Methods without
        any are left out. Only those of ``seeds`` are looked at, if given.
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
        """Add what runs have added to the archive, which is replaced as a whole; a summary.

        Args:
            suite: The suite.
            seeds: Seeds of the results that are added; by default the suite's.

        Raises:
            StoredResultsError: If the archive cannot be read, holds results of other configurations
                or keeps other things of them than the suite now says; or if there are no results.
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
                f"{unfit} results of {suite.name!r} are of other configurations: move the archive "
                f"or {self.path(suite.name).name} away."
            )
        lines = [_header(suite.name, suite.archive), *_sorted_lines(entries.values())]
        text = "".join(f"{line}\n" for line in lines)
        # Another version of the library may compress the same lines into other bytes.
        if entries != held:
            write_atomically(path, lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        added = sum(held.get(key) != entry for key, entry in entries.items())
        size = path.stat().st_size / 1000
        return f"{path.name}: {len(entries)} results, {added} new, {size:.0f} kB"


def _check_statement(suite: Any, path: Path, stated: Mapping[str, str]) -> None:
    if stated and stated != suite.archive.statement():
        raise StoredResultsError(
            f"{path.name} keeps other things of a result than suite {suite.name!r} now says: move "
            "it away."
        )


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
