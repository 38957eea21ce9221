"""The SQL tables of a ledger's file, with a checksum in each row."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from botorch_calib.ledger.contents import Settings
from botorch_calib.ledger.trials import NUMBERS, EarlierValue, Entry

APPLICATION_ID = 0x62634C67  # "bcLg", in bytes 68 to 71 of the file
FORMAT_VERSION = 5

# `y` has no type: in a column of type REAL, SQLite would keep -0.0 as 0.
SCHEMA = {
    "ledger": """CREATE TABLE ledger (
    identity TEXT, revision INTEGER, dim INTEGER, censor_value REAL, max_wait REAL, late TEXT,
    clock TEXT, maximize INTEGER, num_trials INTEGER, latest REAL, checksum INTEGER
)""",
    "trials": """CREATE TABLE trials (
    id INTEGER PRIMARY KEY, x BLOB, submitted_at REAL, y, observed_at REAL, abandoned_at REAL,
    failed_at REAL, yvar REAL, note TEXT, earlier TEXT, decisions TEXT, outcomes TEXT,
    context TEXT, checksum INTEGER
)""",
}
SELECT_TRIALS = (
    f"SELECT id, x, {', '.join(NUMBERS)}, note, earlier, decisions, outcomes, context, checksum "
    "FROM trials"
)


class DamagedRowError(ValueError):
    """A row does not agree with its checksum."""


@dataclass(frozen=True)
class Header:
    """The single row of table ``ledger``."""

    identity: str  # a random name that distinguishes this file from one that replaces it
    revision: int  # number of changes so far
    settings: Settings
    num_trials: int = 0
    latest: float = 0.0  # see `Contents`


def create_tables(database: sqlite3.Connection, header: Header) -> None:
    """Make the tables of an empty database."""
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    for statement in SCHEMA.values():
        database.execute(statement)
    write_header(database, header)


def write_header(database: sqlite3.Connection, header: Header) -> None:
    """Write the row of table ``ledger``, in the place of an earlier one."""
    *settings, maximize = astuple(header.settings)
    maximize = None if maximize is None else int(maximize)  # SQLite has no truth values
    row = (header.identity, header.revision, *settings, maximize, header.num_trials, header.latest)
    database.execute("DELETE FROM ledger")
    _write(database, "INSERT INTO ledger", [_sealed(row)])


def read_header(database: sqlite3.Connection) -> Header:
    """The row of table ``ledger``; `DamagedRowError` if it is damaged."""
    rows = database.execute("SELECT * FROM ledger").fetchall()
    if len(rows) != 1 or not _is_intact(rows[0]):
        raise DamagedRowError("its settings are damaged")
    identity, revision, *settings, maximize, num_trials, latest, _ = rows[0]
    settings.append(None if maximize is None else bool(maximize))
    return Header(identity, revision, Settings(*settings), num_trials, latest)


def write_trials(database: sqlite3.Connection, entries: Iterable[Entry]) -> None:
    """Write rows of table ``trials``, in the place of those with the same ids."""
    rows = []
    for entry in entries:
        numbers = [getattr(entry, name) for name in NUMBERS]
        earlier = json.dumps([astuple(value) for value in entry.earlier])
        sequences = map(json.dumps, (entry.outcomes, entry.context))
        texts = (entry.note, earlier, entry.decisions, *sequences)
        rows.append(_sealed((entry.id, entry.x, *numbers, *texts)))
    _write(database, "REPLACE INTO trials", rows)


def entry_of(row: tuple[Any, ...]) -> Entry:
    """The trial in a row of ``SELECT_TRIALS``; `DamagedRowError` if it is damaged."""
    if not _is_intact(row):
        raise DamagedRowError(f"trial {row[0]} is damaged")
    *values, earlier, decisions, outcomes, context, _ = row
    before = tuple(EarlierValue(*map(_frozen, value)) for value in json.loads(earlier))
    sequences = (_frozen(json.loads(text)) for text in (outcomes, context))
    fields: list[Any] = [*values, before, decisions, *sequences]
    return Entry(*fields)


def _frozen(stored: Any) -> Any:
    """A stored list as a tuple, anything else as it is."""
    return tuple(stored) if isinstance(stored, list) else stored


def _write(database: sqlite3.Connection, statement: str, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        database.executemany(f"{statement} VALUES ({marks})", rows)


def _sealed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row with a checksum at its end, of its values and their types."""
    return (*row, zlib.crc32(repr(row).encode()))


def _is_intact(row: tuple[Any, ...]) -> bool:
    return _sealed(row[:-1]) == row
