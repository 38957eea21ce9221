"""The SQL tables of a ledger's file, with a checksum in each row."""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from typing import Any

from botorch_calib.ledger.contents import Settings
from botorch_calib.ledger.trials import EarlierValue, Entry

APPLICATION_ID = 0x62634C67  # "bcLg", in bytes 68 to 71 of the file
FORMAT_VERSION = 6

# A record is a list in JSON, which keeps every bit of a number, and the sign of -0.0.
SCHEMA = {
    "ledger": "CREATE TABLE ledger (record TEXT, checksum INTEGER)",
    "trials": """CREATE TABLE trials (
    id INTEGER PRIMARY KEY, x BLOB, record TEXT, checksum INTEGER
)""",
}
SELECT_TRIALS = "SELECT id, x, record, checksum FROM trials"


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
    database.execute("DELETE FROM ledger")
    row = _sealed((json.dumps(astuple(header)),))
    database.execute("INSERT INTO ledger VALUES (?, ?)", row)


def read_header(database: sqlite3.Connection) -> Header:
    """The row of table ``ledger``; `DamagedRowError` if it is damaged."""
    rows = database.execute("SELECT record, checksum FROM ledger").fetchall()
    if len(rows) != 1 or not _is_intact(rows[0]):
        raise DamagedRowError("its settings are damaged")
    identity, revision, settings, *others = json.loads(rows[0][0])
    return Header(identity, revision, Settings(*settings), *others)


def write_trials(database: sqlite3.Connection, entries: Iterable[Entry]) -> None:
    """Write rows of table ``trials``, in the place of those with the same ids."""
    for entry in entries:
        trial_id, x, *record = vars(entry).values()
        row = _sealed((trial_id, x, json.dumps(record, default=astuple)))
        database.execute("REPLACE INTO trials VALUES (?, ?, ?, ?)", row)


def entry_of(row: tuple[Any, ...]) -> Entry:
    """The trial in a row of ``SELECT_TRIALS``; `DamagedRowError` if it is damaged."""
    if not _is_intact(row):
        raise DamagedRowError(f"trial {row[0]} is damaged")
    trial_id, x, record, _ = row
    *values, earlier, decisions, outcomes, context = json.loads(record)
    before = tuple(EarlierValue(*map(_frozen, value)) for value in earlier)
    fields: list[Any] = [*values, before, decisions, _frozen(outcomes), _frozen(context)]
    return Entry(trial_id, x, *fields)


def _frozen(stored: Any) -> Any:
    """A stored list as a tuple, anything else as it is."""
    return tuple(stored) if isinstance(stored, list) else stored


def _sealed(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row with a checksum at its end, of its values and their types."""
    return (*row, zlib.crc32(repr(row).encode()))


def _is_intact(row: tuple[Any, ...]) -> bool:
    return _sealed(row[:-1]) == row
