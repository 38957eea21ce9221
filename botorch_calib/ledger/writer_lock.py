"""`WriterLock`: one process at a time writes to a file, and others are told which."""

from __future__ import annotations

import contextlib
import os
import platform
import sqlite3
from pathlib import Path

from botorch_calib.exceptions import LedgerError

WAIT = 1.0  # seconds to wait for somebody who only tells a value


class WriterLock:
    """The right to write to a file, from here to `release` or the end of the process.

    It is SQLite's lock on a small database beside the file, which says who holds it: ``BEGIN
    IMMEDIATE`` lets others read that. The operating system takes it away when the process ends,
    however it ends, and forks do not inherit it.
    """

    def __init__(self, path: Path) -> None:
        file = path.with_name(f"{path.name}.lock")
        try:
            self._database = sqlite3.connect(
                file, timeout=WAIT, isolation_level=None, check_same_thread=False
            )
            with contextlib.ExitStack() as undo:
                undo.callback(self.release)
                self._take()
                undo.pop_all()
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            if code != sqlite3.SQLITE_BUSY:
                raise LedgerError(
                    f"The lock {file} of the ledger cannot be taken: {error}. Without it, the "
                    "ledger can be read (FeedbackLedger.read)."
                ) from error
            raise LedgerError(
                f"The ledger {path} is open in {_holder(file)}, and one process at a time writes "
                "to a ledger. To read it meanwhile, use FeedbackLedger.read. For several "
                "processes, use Optuna's storage, with the DelayAwareSampler of "
                "botorch_calib.integrations.optuna_delays."
            ) from error

    def _take(self) -> None:
        execute = self._database.execute
        execute("BEGIN IMMEDIATE")
        execute("CREATE TABLE IF NOT EXISTS holder (host TEXT, pid INTEGER)")
        execute("DELETE FROM holder")
        execute("INSERT INTO holder VALUES (?, ?)", (platform.node(), os.getpid()))
        execute("COMMIT")
        # Whoever is faster here names itself as well.
        execute("BEGIN IMMEDIATE")

    def release(self) -> None:
        """Let others write."""
        self._database.close()


def _holder(file: Path) -> str:
    try:
        with contextlib.closing(sqlite3.connect(file, timeout=WAIT)) as database:
            host, pid = database.execute("SELECT host, pid FROM holder").fetchone()
    except (sqlite3.Error, TypeError):  # it has not said so yet; SQLite tells no more
        return "another process, or its file system has no locks"
    return f"another process (pid {pid} on {host})"
