"""Trials in an SQLite file, for one process after another or several at once.

Each operation opens a connection of its own and is one transaction, so threads, forks and
pickled copies need no care and a process may be killed at any moment. With ``EXTRA``
synchronisation a change survives a loss of power too, once the call that made it has returned.
What has been read is kept as columns, and only trials that have changed since are read again.

SQLite finds most damage to its pages but none to the numbers in them: a checksum of each row and
of the settings does.
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
from botorch_calib.ledger.storage import LOCK, Storage, Transition, check_known
from botorch_calib.ledger.table import FIELDS, Table
from botorch_calib.ledger.trials import Entry, Settings

APPLICATION_ID = 0x62634C67  # "bcLg", in bytes 68 to 71 of the file
FORMAT_VERSION = 1
BUSY_TIMEOUT = 60.0  # seconds to wait for other processes' changes
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

# Results of SQLite that tell of a file with other contents than a ledger's.
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
        identity: A random name, by which a file is told from one that took its place.
        settings: The ledger's settings.
        num_trials: Number of trials.
        revision: Number of changes so far; each row carries that of its last change.
    """

    identity: str
    settings: Settings
    num_trials: int = 0
    revision: int = 0

    def values(self) -> tuple[Any, ...]:
        """The row's values, with their checksum."""
        row = (self.identity, *astuple(self.settings), self.num_trials, self.revision)
        return (*row, _checksum(repr(row).encode()))

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        """The header whose values these are, or ``ValueError``."""
        count = len(fields(Settings))
        header = cls(row[0], Settings(*row[1 : count + 1]), *row[count + 1 : -1])
        if header.values() != row:
            raise ValueError("the settings do not agree with their checksum")
        return header


class SQLiteStorage(Storage):
    """Trials in an SQLite file that exists; `create_or_open` makes one.

    Args:
        path: The file, without symbolic links.
        header: What the file's header says.
    """

    path: Path

    def __init__(self, path: Path, header: Header) -> None:
        self.path = path
        self._identity = header.identity
        self._settings = header.settings
        self._forget()

    def _forget(self) -> None:
        """Read everything anew at the next view."""
        self._mirror = Table(self._settings.dim)
        self._revision = 0

    @classmethod
    def create_or_open(cls, path: str | os.PathLike[str], given: dict[str, Any]) -> Self:
        """The ledger in a file, made with the ``given`` settings if there is none yet.

        An empty file counts as none: a process killed while it makes one leaves that.

        Raises:
            InputDataError: If the folder does not exist, a setting is invalid or contradicts
                the file, or ``dim`` is missing for a new file.
            DamagedLedgerError: If the file is damaged, is not a ledger or has a newer format.
            LedgerError: If it cannot be used for another reason.
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
                if _is_empty(database):  # no other process has been faster
                    _create(database, new)
        with _transaction(path, "BEGIN") as database:
            header = _checked_header(database, path)
        header.settings.check_agrees(given, path)
        storage = cls(path, header)
        storage.table()
        return storage

    @property
    def settings(self) -> Settings:
        """The settings that the file holds."""
        return self._settings

    def append(self, x: bytes, submitted_at: Callable[[int], float]) -> int:
        """See `Storage`."""
        with self._change() as (database, header):
            trial_id = header.num_trials
            entry = Entry(trial_id, x, submitted_at(trial_id))
            self._write("INSERT", entry, replace(header, num_trials=trial_id + 1), database)
        return trial_id

    def change(self, trial_id: int, transition: Transition) -> None:
        """See `Storage`."""
        with self._change() as (database, header):
            check_known(trial_id, header.num_trials)
            row = database.execute(f"{SELECT_ROWS} WHERE id = ?", (trial_id,)).fetchone()
            if row is None:
                raise DamagedLedgerError(f"The ledger {self.path} has lost trial {trial_id}.")
            _check_rows([row], self._settings.dim, self.path)
            entry = Entry(row[0], row[1], *row[2:8])
            self._write("REPLACE", transition(entry, header.num_trials), header, database)

    def count(self) -> int:
        """See `Storage`."""
        with _transaction(self.path, "BEGIN") as database:
            return self._header(database).num_trials

    def table(self) -> Table:
        """See `Storage`."""
        with LOCK, _transaction(self.path, "BEGIN") as database:
            header = self._header(database)
            if header.revision < self._revision:  # a copy of old has been put back
                self._forget()
            if header.revision > self._revision:
                rows = database.execute(f"{SELECT_ROWS} WHERE revision > ?", (self._revision,))
                self._take(rows.fetchall(), header)
            return self._mirror.copy()

    def _take(self, rows: list[tuple[Any, ...]], header: Header) -> None:
        """Bring the columns up to date with the rows that have changed."""
        _check_rows(rows, self._settings.dim, self.path)
        ids = [row[0] for row in rows]
        # Ids differ, so this many of them leave no gap.
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
    """A connection in a transaction: committed at the end, undone if an exception comes."""
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
                database.close()  # undoes what has not been committed
        except sqlite3.Error as error:
            raise _named(error, path) from error
        except (UnicodeDecodeError, MemoryError) as error:  # of garbled texts and lengths
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
    """Whether nobody has ever written to the database. It has one page once it is to be."""
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
    """The header of a file of which every page has been checked."""
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
        except (struct.error, TypeError, AttributeError):  # values of other types
            intact = False
        if not intact:
            raise DamagedLedgerError(f"Trial {row[0]} is damaged in the ledger {path}.")


def _row_checksum(row: tuple[Any, ...]) -> int:
    """Checksum of a row of `ROW` without its last value."""
    trial_id, x, *numbers, note, revision = row
    # Kept numbers are finite, so NaN is free to stand for None.
    values = [float("nan") if number is None else number for number in numbers]
    return _checksum(struct.pack("<2q5d", trial_id, revision, *values) + x + note.encode())


def _checksum(data: bytes) -> int:
    return zlib.crc32(data)
