"""`Storage`: a ledger's contents, in memory or in a table of an SQLite file.

Each change is one transaction. With ``EXTRA`` synchronisation it survives a power failure once the
call has returned. SQLite detects damage to the structure of its pages only, so each row has a
checksum.
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

# The row with id -1 has the settings as JSON. `recorded_at` is the time, on the ledger's clock, of
# the change that wrote the row. With AUTOINCREMENT, SQLite records the greatest id, which shows
# whether the last rows are missing. Columns without a type preserve every bit of a number, and the
# sign of -0.0.
COLUMNS = (*Entry._fields[1:], "recorded_at", "checksum")
SCHEMA = f"CREATE TABLE trials (id INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(COLUMNS)})"
REPLACE = f"REPLACE INTO trials VALUES (?{', ?' * len(COLUMNS)})"

# Maps a stored trial and the time of an event to the trial after the event.
Transition = Callable[[Entry, float], Entry]

# One lock for all ledgers of the process. ``os.fork`` acquires it, too: a child must not inherit an
# unfinished transaction, or a lock held by a thread that does not exist in the child.
LOCK = threading.RLock()


class Storage:
    """A ledger's contents, in memory or in a file. One thread at a time changes them.

    If ``contents`` is None, the contents are read from the file at ``path``. For a ledger in memory
    ``path`` is None.
    """

    # Open storages by path: a second ledger of the same file shares the storage.
    _of_path: weakref.WeakValueDictionary[Path, Storage] = weakref.WeakValueDictionary()
    _database: sqlite3.Connection | None = None
    _lock: sqlite3.Connection | None = None
    _file: os.stat_result | None = None

    def __init__(self, contents: Contents | None, path: Path | None = None) -> None:
        self._contents, self.path = contents, path
        self._turn, self._num_choices = threading.RLock(), 0

    @classmethod
    def open(cls, path: str | os.PathLike[str], given: dict[str, Any]) -> Storage:
        """Open the ledger in a file, or create it with the ``given`` settings.

        The ``given`` settings, by name, must agree with the settings of an existing ledger. An
        empty file counts as new: a process may have been killed while creating a ledger.
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
                if storage._is_at(path):
                    storage.contents.settings.check_agrees(given, path)
                    return storage
                storage.close()  # its file was deleted or replaced
            storage = cls(None, path)
            try:
                storage._lock = _writer_lock(path)
                storage._connect("rw" if settings is None else "rwc")
                if settings is not None:
                    storage._create_if_empty(settings)
                storage.contents.settings.check_agrees(given, path)
                storage._file = path.stat()
            except BaseException:
                storage.close()  # the traceback may keep the storage, and so the lock, alive
                raise
            cls._of_path[path] = storage
            return storage

    @classmethod
    def read(cls, path: Path) -> Storage:
        """Return a copy in memory of a file's contents, to which another process may write."""
        storage = cls(None, path)
        try:
            storage._connect("rw")  # not "ro": SQLite may roll back the change of a killed process
            return cls(storage.contents)
        finally:
            storage.close()

    def _is_at(self, path: Path) -> bool:
        """Whether the open file is still the file at ``path``."""
        with suppress(OSError):
            return self._file is not None and os.path.samestat(self._file, path.stat())
        return False

    def close(self) -> None:
        """Let other processes write to the file; this process cannot write any more."""
        with LOCK:
            for connection in (self._database, self._lock):
                if connection is not None:
                    connection.close()
            self._database = self._lock = None

    __del__ = close

    @classmethod
    def _leave_to_parent(cls) -> None:
        """Close all files in a forked process, which must not change its parent's files."""
        for storage in [*cls._of_path.values()]:
            storage.close()
        LOCK.release()

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is None:
            return Storage, (self.contents,)
        raise LedgerError(
            f"The ledger {self.path} cannot be pickled or copied, since only one process at a time "
            "writes to its file: use `ledger.snapshot()`, which is in memory."
        )

    # ------------------------------------------------------------ the contents and their changes

    @property
    def contents(self) -> Contents:
        """The current contents, which are read from the file again if a transaction has failed."""
        contents = self._contents
        if contents is None:
            with LOCK:
                contents = self._read() if self._contents is None else self._contents
                self._contents = contents
        return contents

    @contextmanager
    def choosing(self) -> Iterator[None]:
        """Return a context manager for the choice of a query, which one thread at a time enters."""
        with self._turn:
            self._num_choices += 1
            try:
                yield
            finally:
                self._num_choices -= 1

    def append(
        self, trials: Iterable[dict[str, Any]], at: float | None = None, expected: int | None = None
    ) -> list[int]:
        """Add trials, given as fields of `Entry`, and return their ids.

        The time ``at`` (default: now) is the time of submission and, for trials with a value, of
        arrival. If ``expected`` is given and the ledger does not have this number of trials, no
        trial is added, and the list of ids is empty.
        """
        with LOCK:
            contents, now, entries = self.contents, self._now(), []
            if expected not in (None, len(contents)):
                return []
            for trial_id, fields in enumerate(trials, len(contents)):
                # With the clock of iterations, a query's time is the number of queries before it.
                own = float(trial_id) if contents.settings.clock == "iterations" else now
                moment = own if at is None else at
                arrival = moment if "y" in fields else None
                entries.append(Entry(trial_id, submitted_at=moment, observed_at=arrival, **fields))
            if entries:
                self._change(contents.changed(entries, now), entries)
            return [entry.id for entry in entries]

    def replace(self, trial_id: int, transition: Transition, at: float | None = None) -> None:
        """Apply ``transition`` to a trial, for an event at the time ``at`` (default: now)."""
        with LOCK:
            contents, now = self.contents, self._now()
            entry = contents.entries[contents.place(trial_id)]
            event, earliest = entry.last_event
            if at is None:
                # The trial may have a time of submission in the future: the event is not earlier.
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
                self._contents = None  # if the transaction fails, the file is read again
                if _pragma(database, "data_version") != self._version:
                    raise LedgerError(f"Another program has changed the file {self.path}.")
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
        """Return a context manager for a transaction, which an exception rolls back."""
        database = self._database
        if database is None:
            raise LedgerError(
                f"The ledger {self.path} is closed, or belongs to the parent of this forked "
                "process: its contents at that time can be read, but not changed."
            )
        with self._explained_errors(), database:  # commits or rolls back
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
        """Check every page and row of the file, and return its contents."""
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
        """Return a context manager that turns SQLite's errors into errors of the ledger."""
        try:
            yield
        # A `MemoryError` is raised, for example, if the file states a wrong length of a text.
        except (sqlite3.Error, UnicodeDecodeError, MemoryError) as error:
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
    """Whether the database has never been written to."""
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
    """Lock a file for writing, until the returned connection is closed or the process ends.

    This is SQLite's lock on a small database next to the file. The ``user_version`` of the database
    is the id of the process that holds the lock. The operating system releases the lock when the
    process ends, even if it is killed. Forked processes do not inherit the lock.
    """
    lock, holder = None, "with an unreadable id"
    begin, name = "BEGIN IMMEDIATE", f"PRAGMA user_version = {os.getpid()}"
    try:
        lock = _connection(f"{path}.lock", WRITER_TIMEOUT)
        lock.executescript(f"{begin}; {name}; COMMIT; {begin}")  # others can still read the id
        return lock
    except sqlite3.Error as error:
        if lock is not None:
            with suppress(sqlite3.Error):
                holder = str(_pragma(lock, "user_version"))
            lock.close()
        if not getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
            raise LedgerError(
                f"The ledger {path} cannot be used: its lock {path}.lock cannot be written "
                f"({error}). To read the ledger only, use FeedbackLedger.read."
            ) from error
        raise LedgerError(
            f"The ledger {path} is open in another process: {path}.lock is held by process "
            f"{holder} ({error}). Only one process at a time writes to a ledger. To read it "
            "meanwhile, use FeedbackLedger.read. For several processes, use Optuna's storage, with "
            "the DelayAwareSampler of botorch_calib.integrations.optuna_delays."
        ) from error


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=LOCK.acquire, after_in_parent=LOCK.release, after_in_child=Storage._leave_to_parent
    )
