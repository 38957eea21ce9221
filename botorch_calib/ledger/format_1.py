"""The first format of files: without noise variances, amendments, owners and ``maximize``."""

from __future__ import annotations

import sqlite3
import struct
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import DamagedLedgerError
from botorch_calib.ledger.file_format import INSERT_ROW, Header, checksum, create, row_of
from botorch_calib.ledger.settings import Settings
from botorch_calib.ledger.trials import Entry

VERSION = 1

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


def upgrade(database: sqlite3.Connection, path: Path) -> None:
    """Turn a file of this format into one of the current format, within a transaction.

    Nobody has said whether its objective is maximized, so that this can still be declared.

    Raises:
        DamagedLedgerError: If any part of the file is damaged.
    """
    tables = dict(database.execute("SELECT name, sql FROM sqlite_master").fetchall())
    (result,) = database.execute("PRAGMA integrity_check").fetchone()
    if tables != SCHEMA or result != "ok":
        raise DamagedLedgerError(f"The ledger {path} is damaged: {result}.")
    headers = database.execute("SELECT * FROM ledger").fetchall()
    rows = database.execute("SELECT * FROM trials ORDER BY id").fetchall()
    try:
        (row,) = headers
        header = header_of(row)
        entries = [(entry_of(row), row[-2]) for row in rows]
    except (ValueError, TypeError, AttributeError, struct.error, InputDataError) as error:
        raise DamagedLedgerError(f"The ledger {path} is damaged: {error}.") from error
    if [entry.id for entry, _ in entries] != list(range(header.num_trials)):
        raise DamagedLedgerError(f"Trials are missing in the ledger {path}.")
    for name in SCHEMA:
        database.execute(f"DROP TABLE {name}")
    create(database, header)
    database.executemany(INSERT_ROW, [row_of(*each) for each in entries])


def header_of(row: tuple[Any, ...]) -> Header:
    """The header that a row of table ``ledger`` stores; ``ValueError`` if it is damaged."""
    if checksum(repr(row[:-1]).encode()) != row[-1]:
        raise ValueError("the settings do not agree with their checksum")
    identity, *settings, num_trials, revision, _ = row
    return Header(identity, Settings(*settings), num_trials, 0.0, revision)


def entry_of(row: tuple[Any, ...]) -> Entry:
    """The trial that a row of table ``trials`` stores; ``ValueError`` if it is damaged."""
    trial_id, x, *numbers, note, revision, stated = row
    values = [float("nan") if number is None else number for number in numbers]
    data = struct.pack("<2q5d", trial_id, revision, *values) + x + note.encode()
    if checksum(data) != stated:
        raise ValueError(f"trial {trial_id} does not agree with its checksum")
    submitted_at, y, observed_at, abandoned_at, failed_at = numbers
    return Entry(trial_id, x, submitted_at, y, observed_at, abandoned_at, failed_at, note=note)
