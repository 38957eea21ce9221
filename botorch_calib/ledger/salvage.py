"""A new ledger of the trials that SQLite can still read in a damaged file."""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import asdict, replace
from pathlib import Path

from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import DamagedLedgerError
from botorch_calib.ledger.contents import Settings
from botorch_calib.ledger.file_storage import FileStorage
from botorch_calib.ledger.sql_tables import (
    FORMAT_VERSION,
    SELECT_TRIALS,
    DamagedRowError,
    Header,
    entry_of,
    read_header,
)
from botorch_calib.ledger.trials import Entry

DAMAGE = (sqlite3.Error, DamagedRowError, UnicodeDecodeError, MemoryError)

# Without the settings, which hold the number of trials, the search ends after so many in vain.
GAP = 10_000


def salvage(path: Path, new: Path) -> str:
    """Make a ledger in the file ``new`` of the intact trials of a damaged one, with new ids.

    Returns:
        A text that counts these trials and lists the lost ones.

    Raises:
        InputDataError: If there is no such file, or ``new`` exists.
        LedgerError: If no trial is intact, or the new ledger cannot be written.
    """
    if not path.is_file():
        raise InputDataError(f"There is no file {path}.")
    found, header, version = [], None, FORMAT_VERSION
    uri = f"{path.resolve().as_uri()}?mode=rw"  # SQLite takes back an incomplete change
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
        with contextlib.suppress(*DAMAGE):
            database.execute("PRAGMA writable_schema = ON")  # go on where the end is missing
            header = read_header(database)
        trial_id, end = 0, GAP if header is None else header.num_trials
        while trial_id < end:  # one by one: a damaged page costs only its own trials
            with contextlib.suppress(*DAMAGE):
                query = f"{SELECT_TRIALS} WHERE id = ?"
                row = database.execute(query, (trial_id,)).fetchone()
                if row is not None:
                    found.append(entry_of(row))
                    end = end if header is not None else trial_id + GAP
            trial_id += 1
        with contextlib.suppress(*DAMAGE):
            version = database.execute("PRAGMA user_version").fetchone()[0]
    if not found:
        told = "" if version == FORMAT_VERSION else f", whose format is not {FORMAT_VERSION}"
        raise DamagedLedgerError(f"No trial is intact in the file {path}{told}.")
    text = f"{len(found)} trials are intact.\n"
    known = header or Header("", 0, Settings(len(found[0].x) // 8), found[-1].id + 1)
    _make(new, known.settings, found, known.latest)
    missing = set(range(known.num_trials)) - {entry.id for entry in found}
    if missing:
        text += f"Lost: {', '.join(map(str, sorted(missing)))}.\n"
    if header is None:
        text += "The settings are lost, and maybe trials after the last one.\n"
    return text


def _make(path: Path, settings: Settings, entries: list[Entry], latest: float) -> None:
    try:
        path.touch(exist_ok=False)  # an empty file counts as none
    except FileExistsError:
        raise InputDataError(f"The file {path} exists already.") from None
    given = {name: value for name, value in asdict(settings).items() if value is not None}
    later = 1.0 if settings.clock == "iterations" else 0.0
    times = [entry.submitted_at + later for entry in entries]
    times += [entry.observed_at for entry in entries if entry.observed_at is not None]
    try:
        storage = FileStorage.open(path, given)
        with storage.transaction() as change:
            change.entries[:] = [replace(entry, id=i) for i, entry in enumerate(entries)]
            change.changed = set(range(len(entries)))
            change.latest = max(latest, *times)  # by then, all this had happened
        storage.close()
    except BaseException:  # such as a full disk: the rest would stop the next attempt
        path.unlink(missing_ok=True)
        raise
