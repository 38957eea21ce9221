"""Trials in an SQLite file, for one process after another or several at the same time.

Each operation opens its own connection and is one transaction. Threads, forks and pickled copies
therefore need no special care, and a process may be killed at any moment. With ``EXTRA``
synchronisation a change also survives a power failure once the call that made it has returned.
Trials that were read are cached as columns; later reads fetch only what has changed since.

SQLite detects most damage to its pages, but not to the numbers in them. For these, each row and the
settings carry a checksum.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import uuid
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import DamagedLedgerError, LedgerError
from botorch_calib.ledger.settings import Settings
from botorch_calib.ledger.storage_in_memory import (
    FIELDS,
    LOCK,
    Storage,
    Table,
    Transition,
    check_known,
)
from botorch_calib.ledger.trials import Entry

APPLICATION_ID = 0x62634C67  # "bcLg", in bytes 68 to 71 of the file
FORMAT_VERSION = 1
BUSY_TIMEOUT = 60.0  # seconds to wait while another process writes
SYNCHRONOUS = "EXTRA"

# `y` has no type: in a column of type REAL, SQLite would keep -0.0 as 0.
SCHEMA = {
    "ledger": """CREATE TABLE ledger (
    identity TEXT, dim INTEGER, censor_value REAL, max_wait REAL, late TEXT, clock TEXT,
    num_trials INTEGER, revision INTEGER, checksum INTEGER
)""",
    "trials": """CREATE TABLE trials (
    id INTEGER PRIMARY KEY, x BLOB, submitted_at REAL, y, observed_at REAL, abandoned_at REAL,
    failed_at REAL, note TEXT, revision INTEGER, checksum INTEGER
)""",
}
ROW = ("id", "x", *FIELDS, "note", "revision", "checksum")
COLUMNS, MARKS = ", ".join(ROW), ", ".join("?" * len(ROW))
WRITE_ROW = f"INTO trials ({COLUMNS}) VALUES ({MARKS})"
SELECT_ROWS = f"SELECT {COLUMNS} FROM trials"

# Result codes of SQLite for a file whose contents are not those of an intact ledger.
DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
}


@dataclass(frozen=True)
class Header:
    """The single row of table ``ledger``.

    Attributes:
        identity: A random name that distinguishes this file from one that replaces it.
        settings: The ledger's settings.
        num_trials: Number of trials.
        revision: Number of changes so far; each row stores the revision of its last change.
    """

    identity: str
    settings: Settings
    num_trials: int = 0
    revision: int = 0

    def values(self) -> tuple[Any, ...]:
        """The row's values, followed by their checksum."""
        row = (self.identity, *astuple(self.settings), self.num_trials, self.revision)
        return (*row, _checksum(repr(row).encode()))

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        """The header with these values; ``ValueError`` if their checksum is wrong."""
        count = len(fields(Settings))
        header = cls(row[0], Settings(*row[1 : count + 1]), *row[count + 1 : -1])
        if header.values() != row:
            raise ValueError("the settings do not agree with their checksum")
        return header


class SQLiteStorage(Storage):
    """Trials in an existing SQLite file; `create_or_open` creates one.

    Args:
        path: The file, with symbolic links resolved.
        header: The file's header.
    """

    path: Path

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self._identity = header.identity
        self._settings = header.settings
        self._forget()

    def _forget(self) -> None:
        """Drop what was read, so that the next call reads everything again."""
        self._mirror = Table(self._settings.dim)
        self._revision = 0

    @classmethod
    def create_or_open(cls, path: str | os.PathLike[str], given: dict[str, Any]) -> Self:
        """Open the ledger in a file, or create it with the ``given`` settings.

        An empty file counts as missing: a process that is killed while it creates a ledger leaves
        one behind.

        Args:
            path: The file; its folder must exist.
            given: Settings by name; those that are left out are read from the file or, for a new
                file, are the defaults of `Settings`.

        Raises:
            InputDataError: If the folder does not exist, a setting is invalid or contradicts
                the file, or ``dim`` is missing for a new file.
            DamagedLedgerError: If the file is damaged, is not a ledger or has a newer format.
            LedgerError: If the file cannot be used for another reason.
        """
        path = Path(path).resolve()
        if path.is_dir() or not path.parent.is_dir():
            raise InputDataError(f"`path` must be a file in a folder that exists, got {path}.")
        new = None
        if "dim" in given:
            new = Header(uuid.uuid4().hex, Settings(**given))
        elif not path.exists():
            raise InputDataError(f"`dim` is needed to make the new ledger {path}.")
        with _transaction(path, "BEGIN", create=new is not None) as database:
            empty = _is_empty(database)
        if empty:
            if new is None:
                raise InputDataError(f"`dim` is needed: the file {path} is empty.")
            with _transaction(path, "BEGIN IMMEDIATE") as database:
                if _is_empty(database):  # no other process was faster
                    _create(database, new)
        with _transaction(path, "BEGIN") as database:
            header = _checked_header(database, path)
        header.settings.check_agrees(given, path)
        storage = cls(path, header)
        storage.table()
        return storage

    @property
    def settings(self) -> Settings:
        """The settings in the file."""
        return self._settings

    def append(self, x: bytes, submitted_at: Callable[[int], float]) -> int:
        """Add a new trial, as `Storage.append`."""
        with self._change() as (database, header):
            trial_id = header.num_trials
            entry = Entry(trial_id, x, submitted_at(trial_id))
            self._write("INSERT", entry, replace(header, num_trials=trial_id + 1), database)
        return trial_id

    def change(self, trial_id: int, transition: Transition) -> None:
        """Replace a trial by the result of ``transition``, as `Storage.change`."""
        with self._change() as (database, header):
            check_known(trial_id, header.num_trials)
            row = database.execute(f"{SELECT_ROWS} WHERE id = ?", (trial_id,)).fetchone()
            if row is None:
                raise DamagedLedgerError(f"The ledger {self.path} has lost trial {trial_id}.")
            _check_rows([row], self._settings.dim, self.path)
            entry = Entry(row[0], row[1], *row[2:8])
            self._write("REPLACE", transition(entry, header.num_trials), header, database)

    def count(self) -> int:
        """Number of trials."""
        with _transaction(self.path, "BEGIN") as database:
            return self._header(database).num_trials

    def table(self) -> Table:
        """A consistent copy of all trials."""
        with LOCK, _transaction(self.path, "BEGIN") as database:
            header = self._header(database)
            if header.revision < self._revision:  # an older copy of the file was restored
                self._forget()
            if header.revision > self._revision:
                rows = database.execute(f"{SELECT_ROWS} WHERE revision > ?", (self._revision,))
                self._take(rows.fetchall(), header)
            return self._mirror.copy()

    def _take(self, rows: list[tuple[Any, ...]], header: Header) -> None:
        """Update the cached columns with the rows that have changed."""
        _check_rows(rows, self._settings.dim, self.path)
        ids = [row[0] for row in rows]
        # Ids are distinct, so with exactly this many new ones there is no gap.
        num_new = sum(len(self._mirror) <= trial_id < header.num_trials for trial_id in ids)
        if len(self._mirror) + num_new != header.num_trials or min(ids, default=0) < 0:
            raise DamagedLedgerError(f"Trials are missing in the ledger {self.path}.")
        notes = {row[0]: row[7] for row in rows if row[7]}
        self._mirror.write(ids, b"".join(row[1] for row in rows), [row[2:7] for row in rows], notes)
        self._revision = header.revision

    @contextmanager
    def _change(self) -> Iterator[tuple[sqlite3.Connection, Header]]:
        with _transaction(self.path, "BEGIN IMMEDIATE") as database:
            yield database, self._header(database)

    def _header(self, database: sqlite3.Connection) -> Header:
        header = _read_header(database, self.path)
        if header.identity != self._identity:
            raise LedgerError(f"Another ledger has taken the place of {self.path}.")
        return header

    def _write(self, verb: str, entry: Entry, header: Header, database: sqlite3.Connection) -> None:
        header = replace(header, revision=header.revision + 1)
        numbers = [getattr(entry, name) for name in FIELDS]
        row = (entry.id, entry.x, *numbers, entry.note, header.revision)
        database.execute(f"{verb} {WRITE_ROW}", (*row, _row_checksum(row)))
        database.execute(
            "UPDATE ledger SET num_trials = ?, revision = ?, checksum = ?", header.values()[-3:]
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mirror": Table(self._settings.dim), "_revision": 0}


# ---------------------------------------------------------------- the file


@contextmanager
def _transaction(path: Path, begin: str, create: bool = False) -> Iterator[sqlite3.Connection]:
    """A connection in a transaction: committed at the end, rolled back after an exception."""
    uri = f"{path.as_uri()}?mode={'rwc' if create else 'rw'}"
    with LOCK:
        try:
            database = sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT, isolation_level=None)
            try:
                database.execute(f"PRAGMA synchronous = {SYNCHRONOUS}")
                database.execute("PRAGMA cell_size_check = ON")
                database.execute(begin)
                yield database
                database.execute("COMMIT")
            finally:
                database.close()  # rolls back what was not committed
        except sqlite3.Error as error:
            raise _named(error, path) from error
        except (UnicodeDecodeError, MemoryError) as error:  # damaged texts and lengths
            raise DamagedLedgerError(f"The file {path} is damaged: {error!r}.") from error


def _named(error: sqlite3.Error, path: Path) -> LedgerError:
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in DAMAGE:
        return DamagedLedgerError(f"The file {path} is damaged or not a ledger: {error}.")
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return LedgerError(f"The ledger {path} has been locked for {BUSY_TIMEOUT:g} s.")
    return LedgerError(f"The ledger {path} cannot be used: {error}.")


def _pragma(database: sqlite3.Connection, name: str) -> Any:
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def _is_empty(database: sqlite3.Connection) -> bool:
    """Whether nothing was ever written to the database, which may already have its first page."""
    marks = ("application_id", "user_version", "schema_version")
    return _pragma(database, "page_count") <= 1 and not any(_pragma(database, m) for m in marks)


def _create(database: sqlite3.Connection, header: Header) -> None:
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    for statement in SCHEMA.values():
        database.execute(statement)
    values = header.values()
    database.execute(f"INSERT INTO ledger VALUES ({', '.join('?' * len(values))})", values)


def _checked_header(database: sqlite3.Connection, path: Path) -> Header:
    """Check every page of a file, and return its header."""
    if _pragma(database, "application_id") != APPLICATION_ID:
        raise DamagedLedgerError(f"The file {path} is not a ledger.")
    version = _pragma(database, "user_version")
    if version > FORMAT_VERSION:
        raise DamagedLedgerError(
            f"The ledger {path} has format {version}; this version of botorch_calib reads "
            f"formats up to {FORMAT_VERSION}."
        )
    tables = dict(database.execute("SELECT name, sql FROM sqlite_master").fetchall())
    result = _pragma(database, "integrity_check")
    if tables != SCHEMA or version != FORMAT_VERSION or result != "ok":
        raise DamagedLedgerError(f"The ledger {path} is damaged: {result}.")
    return _read_header(database, path)


def _read_header(database: sqlite3.Connection, path: Path) -> Header:
    rows = database.execute("SELECT * FROM ledger").fetchall()
    try:
        (row,) = rows
        return Header.of(row)
    except (ValueError, TypeError, InputDataError) as error:
        raise DamagedLedgerError(f"The ledger {path} is damaged: {error}.") from error


def _check_rows(rows: list[tuple[Any, ...]], dim: int, path: Path) -> None:
    for row in rows:
        try:
            intact = len(row[1]) == 8 * dim and _row_checksum(row[:-1]) == row[-1]
        except (struct.error, TypeError, AttributeError):  # values of the wrong type
            intact = False
        if not intact:
            raise DamagedLedgerError(f"Trial {row[0]} is damaged in the ledger {path}.")


def _row_checksum(row: tuple[Any, ...]) -> int:
    """Checksum of a row of `ROW` without its last value."""
    trial_id, x, *numbers, note, revision = row
    # Stored numbers are finite, so NaN can encode None.
    values = [float("nan") if number is None else number for number in numbers]
    return _checksum(struct.pack("<2q5d", trial_id, revision, *values) + x + note.encode())


def _checksum(data: bytes) -> int:
    return zlib.crc32(data)
