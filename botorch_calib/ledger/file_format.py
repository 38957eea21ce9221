"""What the file of a ledger holds: tables, rows and checksums, as of the current format."""

from __future__ import annotations

import sqlite3
import struct
import zlib
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Self

from botorch_calib.exceptions import DamagedLedgerError
from botorch_calib.ledger.settings import Settings
from botorch_calib.ledger.table import FIELDS
from botorch_calib.ledger.trials import EarlierValue, Entry

APPLICATION_ID = 0x62634C67  # "bcLg", in bytes 68 to 71 of the file
FORMAT_VERSION = 2

# `y` has no type: in a column of type REAL, SQLite would keep -0.0 as 0.
SCHEMA = {
    "ledger": """CREATE TABLE ledger (
    identity TEXT, dim INTEGER, censor_value REAL, max_wait REAL, late TEXT, clock TEXT,
    maximize INTEGER, num_trials INTEGER, latest REAL, revision INTEGER, checksum INTEGER
)""",
    "trials": """CREATE TABLE trials (
    id INTEGER PRIMARY KEY, x BLOB, submitted_at REAL, y, observed_at REAL, abandoned_at REAL,
    failed_at REAL, yvar REAL, note TEXT, owner TEXT, earlier BLOB, revision INTEGER,
    checksum INTEGER
)""",
    "owners": """CREATE TABLE owners (
    name TEXT PRIMARY KEY, machine TEXT, pid INTEGER, started TEXT, beat INTEGER, turn INTEGER
) WITHOUT ROWID""",
}
ROW = ("id", "x", *FIELDS, "note", "owner", "earlier", "revision", "checksum")
COLUMNS, MARKS = ", ".join(ROW), ", ".join("?" * len(ROW))
WRITE_ROW = f"REPLACE INTO trials ({COLUMNS}) VALUES ({MARKS})"
INSERT_ROW = WRITE_ROW.replace("REPLACE", "INSERT", 1)
SELECT_ROWS = f"SELECT {COLUMNS} FROM trials"


@dataclass(frozen=True)
class Header:
    """The single row of table ``ledger``.

    Attributes:
        identity: A random name that distinguishes this file from one that replaces it.
        settings: The ledger's settings.
        num_trials: Number of trials.
        latest: The latest time that the ledger's clock has told.
        revision: Number of changes so far; each row stores the revision of its last change.
    """

    identity: str
    settings: Settings
    num_trials: int = 0
    latest: float = 0.0
    revision: int = 0

    def values(self) -> tuple[Any, ...]:
        """The row's values, followed by their checksum."""
        settings = astuple(self.settings)
        row = (self.identity, *settings, self.num_trials, self.latest, self.revision)
        return (*row, checksum(repr(row).encode()))

    @classmethod
    def of(cls, row: tuple[Any, ...]) -> Self:
        """The header with these values; ``ValueError`` if their checksum is wrong."""
        count = len(fields(Settings))
        settings: list[Any] = list(row[1 : count + 1])
        if settings[-1] is not None:
            settings[-1] = bool(settings[-1])  # SQLite has no truth values
        header = cls(row[0], Settings(*settings), *row[count + 1 : -1])
        if header.values() != row:
            raise ValueError("the settings do not agree with their checksum")
        return header


def create(database: sqlite3.Connection, header: Header) -> None:
    """Make the tables of an empty database, and write the header."""
    database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    database.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
    for statement in SCHEMA.values():
        database.execute(statement)
    write_header(database, header)


def write_header(database: sqlite3.Connection, header: Header) -> None:
    """Write the row of table ``ledger``, in the place of an earlier one."""
    values = header.values()
    database.execute("DELETE FROM ledger")
    database.execute(f"INSERT INTO ledger VALUES ({', '.join('?' * len(values))})", values)


def entry_of(row: tuple[Any, ...]) -> Entry:
    """The trial that a row of table ``trials`` stores."""
    values: list[Any] = [*row[:-3], unpacked(row[-3])]
    return Entry(*values)


def row_of(entry: Entry, revision: int) -> tuple[Any, ...]:
    """The row of table ``trials`` that stores a trial."""
    numbers = [getattr(entry, name) for name in FIELDS]
    row = (entry.id, entry.x, *numbers, entry.note, entry.owner, packed(entry.earlier), revision)
    return (*row, _row_checksum(row))


def packed(earlier: tuple[EarlierValue, ...]) -> bytes:
    """Replaced values as little-endian doubles, three for each, with NaN for None."""
    nan = float("nan")
    return b"".join(
        struct.pack("<3d", value.y, nan if value.yvar is None else value.yvar, value.replaced_at)
        for value in earlier
    )


def unpacked(data: bytes) -> tuple[EarlierValue, ...]:
    """The inverse of `packed`."""
    return tuple(
        EarlierValue(y, None if yvar != yvar else yvar, replaced_at)
        for y, yvar, replaced_at in struct.iter_unpack("<3d", data)
    )


def check_rows(rows: list[tuple[Any, ...]], dim: int, path: Path) -> None:
    """Raise ``DamagedLedgerError`` unless these rows are intact."""
    for row in rows:
        try:
            intact = len(row[1]) == 8 * dim and _row_checksum(row[:-1]) == row[-1]
        except (struct.error, TypeError, AttributeError):  # values of the wrong type
            intact = False
        if not intact:
            raise DamagedLedgerError(f"Trial {row[0]} is damaged in the ledger {path}.")


def _row_checksum(row: tuple[Any, ...]) -> int:
    """Checksum of a row of `ROW` without its last value."""
    trial_id, x, *numbers, note, owner, earlier, revision = row
    # Stored numbers are finite, so NaN can encode None.
    values = [float("nan") if number is None else number for number in numbers]
    texts = (note.encode(), owner.encode(), earlier)
    lengths = [len(text) for text in texts]
    return checksum(
        struct.pack("<2q6d3q", trial_id, revision, *values, *lengths) + x + b"".join(texts)
    )


def checksum(data: bytes) -> int:
    """The checksum that guards everything in a file."""
    return zlib.crc32(data)
