"""A ledger's contents in an SQLite file, which this process alone may change: `FileStorage`.

Each operation opens its own connection and is one transaction: a process may be killed at any
moment. With ``EXTRA`` synchronisation a change also survives a power failure once the call that
made it has returned. SQLite detects most damage to its pages, but not to the numbers in them: for
these, each row carries a checksum.
"""

from __future__ import annotations

import os
import sqlite3
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import DamagedLedgerError, LedgerError
from botorch_calib.ledger.contents import Contents, Settings
from botorch_calib.ledger.sql_tables import (
    APPLICATION_ID,
    FORMAT_VERSION,
    SCHEMA,
    SELECT_TRIALS,
    DamagedRowError,
    Header,
    create_tables,
    entry_of,
    read_header,
    write_header,
    write_trials,
)
from botorch_calib.ledger.storage import LOCK, Storage
from botorch_calib.ledger.writer_lock import WriterLock

BUSY_TIMEOUT = 60.0  # seconds to wait while another process reads
SYNCHRONOUS = "EXTRA"

# Result codes of SQLite for a file whose contents are not those of an intact ledger.
DAMAGE = {
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_FORMAT,
    sqlite3.SQLITE_ERROR,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,  # the length of a text
}


class FileStorage(Storage):
    """A ledger's contents, recorded in a file; `open` makes one."""

    path: Path
    # The storages of this process by file: a second ledger of a file shares the first one's.
    _of_path: weakref.WeakValueDictionary[Path, FileStorage] = weakref.WeakValueDictionary()

    def __init__(self, path: Path, lock: WriterLock) -> None:
        header, contents = read_file(path)
        super().__init__(contents)
        self.path = path
        self._identity = header.identity
        # The file's header; None if it is not certain, after an error or ctrl-C.
        self._header: Header | None = header
        self._release = weakref.finalize(self, lock.release)
        self._of_path[path] = self

    @classmethod
    def open(cls, path: str | os.PathLike[str], given: dict[str, Any]) -> FileStorage:
        """Open the ledger in a file, or create it with the ``given`` settings.

        An empty file, as a process leaves it that is killed while it creates one, counts as none.
        """
        path = Path(path).resolve()
        if path.is_dir() or not path.parent.is_dir():
            raise InputDataError(f"`path` must be a file in a folder that exists, got {path}.")
        new = None
        if "dim" in given:
            new = Header(uuid.uuid4().hex, 0, Settings(**given))
        elif not path.exists():
            raise InputDataError(f"`dim` is needed to make the new ledger {path}.")
        with LOCK:
            storage = cls._of_path.get(path)
            if storage is not None and storage._is_in_its_place():
                storage.contents.settings.check_agrees(given, path)
                return storage
            if storage is not None:
                storage.close()
            lock = WriterLock(path)
            try:
                with _transaction(path, "BEGIN IMMEDIATE", create=new is not None) as database:
                    if _is_empty(database):
                        if new is None:
                            raise InputDataError(f"`dim` is needed: the file {path} is empty.")
                        create_tables(database, new)
                storage = cls(path, lock)
                storage.contents.settings.check_agrees(given, path)
            except BaseException:
                lock.release()
                # A traceback keeps it alive, and it may not write any more.
                cls._of_path.pop(path, None)
                raise
            return storage

    @property
    def contents(self) -> Contents:
        if self._header is None:
            with LOCK:
                if self._header is None:
                    header, self._contents = read_file(self.path)
                    if header.identity != self._identity:
                        raise LedgerError(f"Another ledger has taken the place of {self.path}.")
                    self._header = header
        return self._contents

    def _record(self, contents: Contents, changed: list[int]) -> None:
        if not self._release.alive:
            raise LedgerError(
                f"The ledger {self.path} is closed, or belongs to the process from which this one "
                "was forked: only what was known then can be read."
            )
        before, self._header = self._header, None
        assert before is not None
        header = Header(
            self._identity, before.revision + 1, contents.settings, len(contents), contents.latest
        )
        with _transaction(self.path, "BEGIN IMMEDIATE") as database:
            if read_header(database) != before:
                raise LedgerError(f"Something else has changed or replaced the file {self.path}.")
            write_trials(database, [contents.entries[trial_id] for trial_id in changed])
            write_header(database, header)
        self._contents, self._header = contents, header

    def _is_in_its_place(self) -> bool:
        """Whether the file is still there, and this storage may change it."""
        try:
            with _transaction(self.path, "BEGIN") as database:
                return self._release.alive and read_header(database).identity == self._identity
        except LedgerError:
            return False

    def close(self) -> None:
        """Let other processes write to the file; nothing can be recorded here any more."""
        self._release()

    def __reduce__(self) -> NoReturn:
        raise LedgerError(
            f"The ledger {self.path} cannot be pickled or copied, since one process at a time "
            "writes to its file: take `ledger.snapshot()`, which is in memory."
        )


def _close_all() -> None:
    for storage in list(FileStorage._of_path.values()):
        storage.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_all)


def read_file(path: Path) -> tuple[Header, Contents]:
    """The contents of a file, after a check of every page and row, whoever writes to it."""
    with _transaction(path, "BEGIN") as database:
        header = _checked_header(database, path)
        rows = database.execute(f"{SELECT_TRIALS} ORDER BY id")
        entries = tuple(map(entry_of, rows))
    if [entry.id for entry in entries] != list(range(header.num_trials)):
        raise DamagedLedgerError(f"The ledger {path} is damaged: trials are missing.")
    return header, Contents(header.settings, entries, header.latest)


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
                database.close()  # rolls back a change that was not committed
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code in DAMAGE:
                text = f"The file {path} is damaged or not a ledger: {error}."
                raise DamagedLedgerError(text) from error
            raise LedgerError(f"The ledger {path} cannot be used: {error}.") from error
        except DamagedRowError as error:
            raise DamagedLedgerError(f"The ledger {path} is damaged: {error}.") from error
        except (UnicodeDecodeError, MemoryError) as error:  # damaged texts and lengths
            raise DamagedLedgerError(f"The file {path} is damaged: {error!r}.") from error


def _pragma(database: sqlite3.Connection, name: str) -> Any:
    return database.execute(f"PRAGMA {name}").fetchone()[0]


def _is_empty(database: sqlite3.Connection) -> bool:
    """Whether nothing was ever written to the database, which may already have its first page."""
    marks = ("application_id", "user_version", "schema_version")
    return _pragma(database, "page_count") <= 1 and not any(_pragma(database, m) for m in marks)


def _checked_header(database: sqlite3.Connection, path: Path) -> Header:
    """Check every page of a file, and return its header."""
    if _is_empty(database):
        raise InputDataError(f"The file {path} is empty.")
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
    # SQLite fills up an incomplete last page by zeros.
    if path.stat().st_size < _pragma(database, "page_count") * _pragma(database, "page_size"):
        result = "its end is missing"
    if result == "ok" and tables != SCHEMA:
        result = "its tables are not those of a ledger"
    if result != "ok":
        raise DamagedLedgerError(f"The ledger {path} is damaged: {result}.")
    return read_header(database)
