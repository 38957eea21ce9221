"""What is left in a damaged file: rows whose checksum is right, wherever they stand in it.

SQLite refuses to read a file whose first page, whose schema or whose tree of pages is damaged. So
this reads the pages themselves. The rows of a table are in its leaf pages, which begin with a list
of where the rows are, and long rows go on in overflow pages (https://www.sqlite.org/fileformat2.html,
sections 1.6 and 2). A page may be out of date, because it was freed or belongs to a change that was
not completed: of several versions of a trial the last one counts.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from botorch.exceptions.errors import InputDataError

from botorch_calib.exceptions import DamagedLedgerError
from botorch_calib.ledger.file_format import ROW, Header, check_rows, entry_of
from botorch_calib.ledger.settings import Settings
from botorch_calib.ledger.table import FIELDS
from botorch_calib.ledger.trials import Entry

LEAF = 13  # type of a page that holds rows of a table
PAGE_SIZES = (4096, 512, 1024, 2048, 8192, 16384, 32768, 65536)

# What goes wrong where bytes are not what they are taken for.
NONSENSE = (IndexError, ValueError, TypeError, AttributeError, struct.error, OverflowError)


@dataclass(frozen=True)
class Salvage:
    """What an intact part of a damaged file holds.

    Attributes:
        settings: The ledger's settings; only their ``dim`` is known if `header` is None.
        header: The file's header, or None if it is damaged.
        entries: The intact trials, by id.
        missing: Ids of trials that are lost; without a header, those of the last ones are unknown.
    """

    settings: Settings
    header: Header | None
    entries: tuple[Entry, ...]
    missing: tuple[int, ...]

    @property
    def latest(self) -> float:
        """A time on the ledger's clock at which all of this had happened."""
        later = 1.0 if self.settings.clock == "iterations" else 0.0
        times = [entry.submitted_at + later for entry in self.entries]
        times += [entry.observed_at for entry in self.entries if entry.observed_at is not None]
        return max(times + ([] if self.header is None else [self.header.latest]))


def salvage(path: Path) -> Salvage:
    """Read all trials of a file that are intact. The file may be damaged, and is not changed.

    Raises:
        InputDataError: If there is no such file.
        DamagedLedgerError: If no trial is intact.
    """
    if not path.is_file():
        raise InputDataError(f"`path` must be a file that exists, got {path}.")
    data = path.read_bytes()
    # The size of pages stands at the beginning, which may be damaged as well.
    headers, found = max((_read(data, size, path) for size in PAGE_SIZES), key=lambda r: len(r[1]))
    header = max(headers, key=lambda each: each.revision, default=None)
    if header is None:
        sizes = Counter(len(entry.x) for _, entry in found)
        settings = Settings(sizes.most_common(1)[0][0] // 8) if sizes else Settings(1)
    else:
        settings = header.settings
    latest: dict[int, Entry] = {}
    for _, entry in sorted(found, key=lambda each: each[0]):
        if len(entry.x) == 8 * settings.dim:
            latest[entry.id] = entry
    if not latest:
        raise DamagedLedgerError(f"No trial is intact in the file {path}.")
    count = max(max(latest) + 1, 0 if header is None else header.num_trials)
    missing = tuple(i for i in range(count) if i not in latest)
    return Salvage(settings, header, tuple(latest[i] for i in sorted(latest)), missing)


def renumbered(entries: tuple[Entry, ...]) -> list[Entry]:
    """The trials with ids 0, 1, ..., as a new ledger needs them, and without owners."""
    return [replace(entry, id=i, owner="") for i, entry in enumerate(entries)]


def _read(data: bytes, size: int, path: Path) -> tuple[list[Header], list[tuple[int, Entry]]]:
    """All intact headers, and all intact trials with their revisions, in pages of a size."""
    headers: list[Header] = []
    entries: list[tuple[int, Entry]] = []
    for start in range(0, len(data), size):
        for row_id, row in _rows_of_page(data, start, size):
            try:
                if len(row) == len(ROW):
                    row = (row_id, row[1], *_as_floats(row[2 : 2 + len(FIELDS)]), *row[8:])
                    check_rows([row], len(row[1]) // 8, path)
                    entries.append((row[-2], entry_of(row)))
                elif len(row) == 11:
                    header = (*row[:2], *_as_floats(row[2:4]), *row[4:8], float(row[8]), *row[9:])
                    headers.append(Header.of(header))
            except (*NONSENSE, DamagedLedgerError, InputDataError):
                continue
    return headers, entries


def _as_floats(values: tuple[Any, ...]) -> list[float | None]:
    """SQLite stores whole numbers as integers, also in columns of type REAL."""
    return [None if value is None else float(value) for value in values]


def _rows_of_page(data: bytes, start: int, size: int) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Whatever looks like rows in the page that begins at ``start``, with their row ids."""
    head = start + (100 if start == 0 else 0)  # the file's header precedes its first page
    if len(data) < head + 8 or data[head] != LEAF:
        return
    (count,) = struct.unpack_from(">H", data, head + 3)
    for i in range(min(count, size // 2)):
        try:
            (offset,) = struct.unpack_from(">H", data, head + 8 + 2 * i)
            length, at = _varint(data, start + offset)
            row_id, at = _varint(data, at)
            yield row_id, _values(_payload(data, at, length, size))
        except NONSENSE:
            continue


def _payload(data: bytes, at: int, length: int, size: int) -> bytes:
    """A row's bytes, those in overflow pages included; all pages are used to their ends."""
    if not 0 < length <= len(data):
        raise ValueError("no length of a row")
    local = length
    if length > size - 35:
        least = (size - 12) * 32 // 255 - 23
        local = least + (length - least) % (size - 4)
        local = local if local <= size - 35 else least
    payload = data[at : at + local]
    if len(payload) < length:
        (page,) = struct.unpack_from(">I", data, at + local)
        parts = [payload]
        while length > local and page:
            begin = (page - 1) * size
            parts.append(data[begin + 4 : begin + size][: length - local])
            if not parts[-1]:
                break
            local += len(parts[-1])
            (page,) = struct.unpack_from(">I", data, begin)
        payload = b"".join(parts)
    if len(payload) != length:
        raise ValueError("a part of a row is missing")
    return payload


def _values(record: bytes) -> tuple[Any, ...]:
    """The values of a row: first the type of each, then their bytes."""
    at_value, at = _varint(record, 0)
    end, values = at_value, []
    while at < end:
        kind, at = _varint(record, at)
        value, at_value = _value(record, kind, at_value)
        values.append(value)
    return tuple(values)


def _value(record: bytes, kind: int, at: int) -> tuple[Any, int]:
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    length = (0, 1, 2, 3, 4, 6, 8, 8)[kind] if kind < 8 else (kind - 12) // 2
    data = record[at : at + length]
    if len(data) != length:
        raise ValueError("a part of a value is missing")
    if kind == 7:
        return struct.unpack(">d", data)[0], at + length
    if kind < 8:
        return int.from_bytes(data, "big", signed=True), at + length
    if kind < 12:
        raise ValueError("no type of a value")
    return data if kind % 2 == 0 else data.decode(), at + length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes with seven bits each, and eight in the ninth; its end."""
    number = 0
    for i in range(8):
        number = number << 7 | data[at + i] & 0x7F
        if data[at + i] < 0x80:
            return number, at + i + 1
    return number << 8 | data[at + 8], at + 9
