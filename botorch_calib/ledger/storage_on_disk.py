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
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any, Self

from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import DamagedLedgerError, LedgerError
from botorch_calib.ledger.file_format import (
    APPLICATION_ID,
    FORMAT_VERSION,
    INSERT_ROW,
    SCHEMA,
    SELECT_ROWS,
    WRITE_ROW,
    Header,
    check_rows,
    create,
    entry_of,
    row_of,
    write_header,
)
from botorch_calib.ledger.file_locks import check_locks
from botorch_calib.ledger.owners import Owner
from botorch_calib.ledger.settings import Settings
from botorch_calib.ledger.storage_in_memory import LOCK, Change, Storage
from botorch_calib.ledger.table import Table
from botorch_calib.ledger.trials import Entry

BUSY_TIMEOUT = 60.0  # seconds to wait while another process writes
SYNCHRONOUS = "EXTRA"

# Result codes of SQLite for a file whose contents are not those of an intact ledger.
DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
}


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
        self.settings = header.settings
        self._forget()

    def _forget(self) -> None:
        """Drop what was read, so that the next call reads everything again."""
        self._mirror = Table(self.settings.dim)
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
            DamagedLedgerError: If the file is damaged, is not a ledger or has another format.
            LedgerError: If the file cannot be used for another reason, such as a file system
                without locks.
        """
        path = Path(path).resolve()
        if path.is_dir() or not path.parent.is_dir():
            raise InputDataError(f"`path` must be a file in a folder that exists, got {path}.")
        check_locks(path.parent)
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
                    create(database, new)
        with _transaction(path, "BEGIN") as database:
            header = _checked_header(database, path)
        header.settings.check_agrees(given, path)
        storage = cls(path, header)
        storage.table()
        return storage

    @contextmanager
    def transaction(self) -> Iterator[Change]:
        """A change, as `Storage.transaction`."""
        with LOCK, _transaction(self.path, "BEGIN IMMEDIATE") as database:
            header = self._header(database)
            owners = _read_owners(database, self.path)
            change = Change(
                header.settings,
                header.num_trials,
                header.latest,
                owners,
                lambda trial_id: self._entry(database, trial_id),
                lambda: self._refreshed(database, header),
            )
            yield change
            _write_owners(database, owners, change.owners)
            self._write(database, header, change)

    def extent(self) -> tuple[int, float]:
        """Number of trials and latest time, as `Storage.extent`."""
        with _transaction(self.path, "BEGIN") as database:
            header = self._header(database)
            return header.num_trials, header.latest

    def table(self) -> Table:
        """A consistent copy of all trials."""
        with LOCK, _transaction(self.path, "BEGIN") as database:
            return self._refreshed(database, self._header(database)).copy()

    def stock(self) -> tuple[Table, dict[str, Owner]]:
        """A copy of all trials, and the runs that use them."""
        with LOCK, _transaction(self.path, "BEGIN") as database:
            table = self._refreshed(database, self._header(database)).copy()
            return table, _read_owners(database, self.path)

    def _refreshed(self, database: sqlite3.Connection, header: Header) -> Table:
        """All trials as columns, after a look at what has changed."""
        if header.revision < self._revision:  # an older copy of the file was restored
            self._forget()
        if header.revision > self._revision:
            rows = database.execute(f"{SELECT_ROWS} WHERE revision > ?", (self._revision,))
            self._take(rows.fetchall(), header)
        self._mirror.latest = header.latest
        return self._mirror

    def _take(self, rows: list[tuple[Any, ...]], header: Header) -> None:
        """Update the cached columns with the rows that have changed."""
        check_rows(rows, self.settings.dim, self.path)
        ids = [row[0] for row in rows]
        # Ids are distinct, so with exactly this many new ones there is no gap.
        num_new = sum(len(self._mirror) <= trial_id < header.num_trials for trial_id in ids)
        if len(self._mirror) + num_new != header.num_trials or min(ids, default=0) < 0:
            raise DamagedLedgerError(f"Trials are missing in the ledger {self.path}.")
        self._mirror.write([entry_of(row) for row in rows])
        self._revision = header.revision

    def _entry(self, database: sqlite3.Connection, trial_id: int) -> Entry:
        row = database.execute(f"{SELECT_ROWS} WHERE id = ?", (trial_id,)).fetchone()
        if row is None:
            raise DamagedLedgerError(f"The ledger {self.path} has lost trial {trial_id}.")
        check_rows([row], self.settings.dim, self.path)
        return entry_of(row)

    def _header(self, database: sqlite3.Connection) -> Header:
        header = _read_header(database, self.path)
        if header.identity != self._identity:
            raise LedgerError(f"Another ledger has taken the place of {self.path}.")
        self.settings = header.settings
        return header

    def _write(self, database: sqlite3.Connection, header: Header, change: Change) -> None:
        new = replace(
            header,
            settings=change.settings,
            num_trials=change.num_trials,
            latest=change.clock.latest,
            revision=header.revision + bool(change.entries),
        )
        for trial_id, entry in change.entries.items():
            statement = WRITE_ROW if trial_id < header.num_trials else INSERT_ROW
            database.execute(statement, row_of(entry, new.revision))
        if new != header:
            write_header(database, new)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_mirror": Table(self.settings.dim), "_revision": 0}


# ---------------------------------------------------------------- the runs that use a file


def _read_owners(database: sqlite3.Connection, path: Path) -> dict[str, Owner]:
    owners = [Owner(*row) for row in database.execute("SELECT * FROM owners")]
    for owner in owners:
        kinds = tuple(type(value) for value in astuple(owner))
        if kinds != (str, str, int, str, int, int):
            raise DamagedLedgerError(f"The list of runs is damaged in the ledger {path}.")
    return {owner.name: owner for owner in owners}


def _write_owners(
    database: sqlite3.Connection, old: dict[str, Owner], new: dict[str, Owner]
) -> None:
    for name in old.keys() - new.keys():
        database.execute("DELETE FROM owners WHERE name = ?", (name,))
    for name, owner in new.items():
        if old.get(name) != owner:
            database.execute("REPLACE INTO owners VALUES (?, ?, ?, ?, ?, ?)", astuple(owner))


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


def _checked_header(database: sqlite3.Connection, path: Path) -> Header:
    """Check every page of a file, and return its header."""
    if _pragma(database, "application_id") != APPLICATION_ID:
        raise DamagedLedgerError(f"The file {path} is not a ledger.")
    version = _pragma(database, "user_version")
    if version != FORMAT_VERSION:
        raise DamagedLedgerError(
            f"The ledger {path} has format {version}; this version of botorch_calib reads format "
            f"{FORMAT_VERSION}."
        )
    tables = dict(database.execute("SELECT name, sql FROM sqlite_master").fetchall())
    result = _pragma(database, "integrity_check")
    # SQLite takes what is missing from the last page for zeros.
    if path.stat().st_size < _pragma(database, "page_count") * _pragma(database, "page_size"):
        result = "its end is missing"
    if result == "ok" and tables != SCHEMA:
        result = "its tables are not those of a ledger"
    if result != "ok":
        raise DamagedLedgerError(f"The ledger {path} is damaged: {result}.")
    return _read_header(database, path)


def _read_header(database: sqlite3.Connection, path: Path) -> Header:
    rows = database.execute("SELECT * FROM ledger").fetchall()
    try:
        (row,) = rows
        return Header.of(row)
    except (ValueError, TypeError, InputDataError) as error:
        raise DamagedLedgerError(f"The ledger {path} is damaged: {error}.") from error
