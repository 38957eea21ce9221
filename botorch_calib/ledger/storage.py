"""`Storage`: a ledger's contents in memory and, where it has a file, in a table of SQLite there.

A change is one transaction. With ``EXTRA`` synchronisation it survives a power failure once the
call that made it has returned. SQLite detects damage to its pages, but not to the numbers in them:
for these, each row carries a checksum.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import DamagedLedgerError, LedgerError
from botorch_calib.ledger.contents import Contents, Settings
from botorch_calib.ledger.trials import Entry

APPLICATION_ID = 0x62634C67  # "bcLg", in bytes 68 to 71 of the file
FORMAT_VERSION = 8
SYNCHRONOUS = "EXTRA"
READER_TIMEOUT = 60.0  # seconds to wait while another process reads
WRITER_TIMEOUT = 1.0  # seconds to wait while another process writes

# Row -1 holds the settings as JSON, and `recorded_at` the ledger's clock at the change. By
# AUTOINCREMENT SQLite keeps the greatest id, which tells whether the last rows are missing. Columns
# without a type keep every bit of a number, and the sign of -0.0.
COLUMNS = (*Entry._fields[1:], "recorded_at", "checksum")
SCHEMA = f"CREATE TABLE trials (id INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(COLUMNS)})"
REPLACE = f"REPLACE INTO trials VALUES (?{', ?' * len(COLUMNS)})"

# Maps a stored trial and the time of an event to the trial that takes its place.
Transition = Callable[[Entry, float], Entry]

# One lock for all ledgers of the process. Forks take it as well: a child must inherit neither an
# unfinished transaction nor a lock whose holder does not exist there.
LOCK = threading.RLock()


class Storage:
    """A ledger's contents, which one thread at a time changes; a pickled copy is independent.

    ``contents`` are None to read them from the file at ``path``, which is None in memory.
    """

    # Those of the files that this process may change: a second ledger of a file shares the first's.
    _of_path: weakref.WeakValueDictionary[Path, Storage] = weakref.WeakValueDictionary()
    _database: sqlite3.Connection | None = None
    _lock: sqlite3.Connection | None = None

    def __init__(self, contents: Contents | None, path: Path | None = None) -> None:
        self._contents, self.path = contents, path
        self._turn, self._num_choices = threading.RLock(), 0

    @classmethod
    def open(cls, path: str | os.PathLike[str], given: dict[str, Any]) -> Storage:
        """Open the ledger in a file, or create it with the ``given`` settings.

        An empty file, as a process leaves it that is killed while it creates one, counts as none.
        """
        path = Path(path).resolve()
        if path.is_dir() or not path.parent.is_dir():
            raise InputDataError(f"`path` must be a file in a folder that exists, got {path}.")
        settings = Settings(**given) if "dim" in given else None
        if settings is None and not path.exists():
            raise InputDataError(f"`dim` is needed to make the new ledger {path}.")
        with LOCK:
            storage = cls._of_path.get(path)
            if storage is not None and storage._database is not None:
                storage.contents.settings.check_agrees(given, path)
                return storage
            storage = cls(None, path)
            try:
                storage._lock = _writer_lock(path)
                storage._connect("rw" if settings is None else "rwc")
                if settings is not None:
                    storage._create_if_empty(settings)
                storage.contents.settings.check_agrees(given, path)
            except BaseException:
                storage.close()  # a traceback keeps it alive, and must not keep out others
                raise
            cls._of_path[path] = storage
            return storage

    @classmethod
    def read(cls, path: Path) -> Storage:
        """A copy in memory of what a file holds, whoever writes to it."""
        storage = cls(None, path)
        try:
            storage._connect("rw")  # SQLite takes back a change that a killed process left
            return cls(storage.contents)
        finally:
            storage.close()

    def close(self) -> None:
        """Let other processes write to the file; nothing can be recorded there any more."""
        with LOCK:
            for connection in (self._database, self._lock):
                if connection is not None:
                    connection.close()
            self._database = self._lock = None

    __del__ = close

    @classmethod
    def _leave_to_parent(cls) -> None:
        """In a forked process, which may not change the files of its parent."""
        for storage in [*cls._of_path.values()]:
            storage.close()
        LOCK.release()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            return Storage, (self.contents,)
        raise LedgerError(
            f"The ledger {self.path} cannot be pickled or copied, since one process at a time "
            "writes to its file: take `ledger.snapshot()`, which is in memory."
        )

    # ------------------------------------------------------------ the contents and their changes

    @property
    def contents(self) -> Contents:
        """The ledger's contents now, read from the file where they are not certain."""
        contents = self._contents
        if contents is None:
            with LOCK:
                contents = self._read() if self._contents is None else self._contents
                self._contents = contents
        return contents

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """A context in which a query is chosen; other threads wait with their choices."""
        with self._turn:
            self._num_choices += 1
            try:
                yield
            finally:
                self._num_choices -= 1

    def append(
        self, trials: Iterable[dict[str, Any]], at: float | None = None, expected: int | None = None
    ) -> list[int]:
        """Add trials, of some fields of `Entry`, at a time (default: now); returns their ids.

        None is added if the number of those before is not the ``expected`` one.
        """
        with LOCK:
            contents, now, entries = self.contents, self._now(), []
            if expected not in (None, len(contents)):
                return []
            for trial_id, fields in enumerate(trials, len(contents)):
                # An iteration is a number of queries, whatever else has been recorded.
                own = float(trial_id) if contents.settings.clock == "iterations" else now
                moment = own if at is None else at
                arrival = moment if "y" in fields else None
                entries.append(Entry(trial_id, submitted_at=moment, observed_at=arrival, **fields))
            if entries:
                self._change(contents.changed(entries, now), entries)
            return [entry.id for entry in entries]

    def replace(self, trial_id: int, transition: Transition, at: float | None = None) -> None:
        """Replace a trial by what an event makes of it that happens at a time (default: now)."""
        with LOCK:
            contents, now = self.contents, self._now()
            entry = contents.entries[contents.place(trial_id)]
            event, earliest = entry.last_event
            if at is None:
                # The submission may have been given a time that has not come yet.
                at = now = max(now, earliest)
            entry = transition(entry, at)
            if at < earliest:
                raise InputDataError(
                    f"`time` {at!r} lies before {event} of trial {entry.id} at {earliest!r}."
                )
            self._change(contents.changed([entry], now), [entry])

    def declare(self, maximize: bool) -> None:
        with LOCK:
            contents = self.contents
            settings = replace(contents.settings, maximize=maximize)
            if settings != contents.settings:
                self._change(replace(contents, settings=settings), [_settings_entry(settings)])

    def _now(self) -> float:
        return self.contents.now(self._num_choices > 0)

    def _change(self, contents: Contents, entries: list[Entry]) -> None:
        if self.path is not None:
            with self._transaction("BEGIN IMMEDIATE") as database:
                self._contents = None  # not certain until the transaction has ended
                if _pragma(database, "data_version") != self._version:
                    raise LedgerError(f"Something else has changed the file {self.path}.")
                database.executemany(REPLACE, [_row_of(e, contents.latest) for e in entries])
        self._contents = contents

    # ------------------------------------------------------------ the file

    def _connect(self, mode: str) -> None:
        assert self.path is not None
        with self._explained_errors():
            self._database = _connection(f"{self.path.as_uri()}?mode={mode}", READER_TIMEOUT)
            self._database.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        """A transaction: committed at the end, rolled back after an exception."""
        database = self._database
        if database is None:
            raise LedgerError(
                f"The ledger {self.path} is closed, or belongs to the process from which this one "
                "was forked: only what was known then can be read."
            )
        with self._explained_errors(), database:  # which commits or rolls back
            database.execute(begin)
            yield database

    def _create_if_empty(self, settings: Settings) -> None:
        with self._transaction("BEGIN IMMEDIATE") as database:
            if _is_empty(database):
                database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
                database.execute(SCHEMA)
                database.execute(REPLACE, _row_of(_settings_entry(settings), 0.0))

    def _read(self) -> Contents:
        """What the table holds, after a check of every page and row."""
        with self._transaction("BEGIN") as database:
            if _is_empty(database):
                raise InputDataError(f"`dim` is needed: the file {self.path} is empty.")
            marks = _pragma(database, "application_id"), _pragma(database, "user_version")
            if marks != (APPLICATION_ID, FORMAT_VERSION):
                raise self._damaged(f"this version of botorch_calib reads format {FORMAT_VERSION}")
            fault = _pragma(database, "quick_check")
            schema = database.execute("SELECT sql FROM sqlite_master WHERE name = 'trials'")
            if fault != "ok" or schema.fetchall() != [(SCHEMA,)]:
                raise self._damaged(fault if fault != "ok" else "its table is not a ledger's")
            rows = database.execute("SELECT * FROM trials ORDER BY id").fetchall()
            (greatest,) = database.execute("SELECT max(seq) FROM sqlite_sequence").fetchone()
            self._version = _pragma(database, "data_version")
        for row in rows:
            if row[-1] != _checksum(row[:-1]):
                raise self._damaged(f"row {row[0]} does not agree with its checksum")
        num = len(rows) - 1
        if [row[0] for row in rows] != [*range(-1, num)] or greatest != max(num - 1, 0):
            raise self._damaged("rows are missing")
        header, *entries = (Entry.restored(row[:-2]) for row in rows)
        return Contents(Settings(**json.loads(header.note)), entries, max(row[-2] for row in rows))

    @contextmanager
    def _explained_errors(self) -> Iterator[None]:
        """A context in which errors of SQLite become errors of the ledger."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError, MemoryError) as error:  # such as damaged lengths
            name = getattr(error, "sqlite_errorname", "SQLITE_ERROR")
            if not isinstance(error, sqlite3.OperationalError) or name == "SQLITE_ERROR":
                raise self._damaged(error) from error
            hint = " (it was deleted or replaced: open it again)" * name.endswith("DBMOVED")
            raise LedgerError(f"The ledger {self.path} cannot be used: {error}{hint}.") from error

    def _damaged(self, fault: object) -> DamagedLedgerError:
        return DamagedLedgerError(f"The file {self.path} is damaged or not a ledger: {fault}.")


def _connection(address: str, timeout: float) -> sqlite3.Connection:
    return sqlite3.connect(
        address, uri=True, timeout=timeout, isolation_level=None, check_same_thread=False
    )


def _pragma(database: sqlite3.Connection, name: str) -> Any:
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def _is_empty(database: sqlite3.Connection) -> bool:
    """Whether nothing was ever written."""
    marks = ("application_id", "user_version", "schema_version")
    return not any(_pragma(database, mark) for mark in marks)


def _settings_entry(settings: Settings) -> Entry:
    return Entry(-1, b"", 0.0, note=json.dumps(asdict(settings)))


def _row_of(entry: Entry, clock: float) -> tuple[Any, ...]:
    stored = (json.dumps(value) if isinstance(value, tuple) else value for value in entry)
    row = (*stored, clock)
    return (*row, _checksum(row))


def _checksum(row: tuple[Any, ...]) -> int:
    return zlib.crc32(ascii(row).encode())


def _writer_lock(path: Path) -> sqlite3.Connection:
    """The right to write to a file, until the connection is closed or the process ends.

    It is SQLite's lock on a small database next to the file, whose ``user_version`` is the id of
    the process that holds it. The operating system releases it when that process ends, however it
    ends, and forks do not inherit it.
    """
    lock = _connection(f"{path}.lock", WRITER_TIMEOUT)
    begin, name = "BEGIN IMMEDIATE", f"PRAGMA user_version = {os.getpid()}"
    try:
        lock.executescript(f"{begin}; {name}; COMMIT; {begin}")  # meanwhile, others can read it
        return lock
    except sqlite3.Error as error:
        holder = "of an id that cannot be read"
        with suppress(sqlite3.Error):
            holder = str(_pragma(lock, "user_version"))
        lock.close()
        raise LedgerError(
            f"The ledger {path} is open in another process: {path}.lock is held by process "
            f"{holder} ({error}). One process at a time writes to a ledger. To read it meanwhile, "
            "use FeedbackLedger.read. For several processes, use Optuna's storage, with the "
            "DelayAwareSampler of botorch_calib.integrations.optuna_delays."
        ) from error


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=Storage._leave_to_parent
    )
