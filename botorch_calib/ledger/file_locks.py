"""Whether a file system has locks that work, without which a shared file is soon damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import struct
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from botorch_calib.exceptions import LedgerError

try:
    import fcntl
except ImportError:  # Windows, whose file systems all have locks
    fcntl = None  # type: ignore[assignment]

NO_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
TAKEN = {errno.EACCES, errno.EAGAIN}


def check_locks(folder: Path) -> None:
    """Raise ``LedgerError`` if locks do not work in a folder, as far as this can be told.

    Two descriptions of one unnamed file must exclude each other. Ordinary locks belong to processes
    and cannot tell that within one; Linux has locks that belong to descriptions.
    """
    set_lock = getattr(fcntl, "F_OFD_SETLK", None)
    if set_lock is None or sys.maxsize < 2**32:  # the structure below is that of 64 bits
        return
    # A write lock of the first byte: type, origin, start, length, and 0 for the process.
    lock = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    try:
        with _two_descriptions(folder) as (first, second):
            fcntl.fcntl(first, set_lock, lock)
            try:
                fcntl.fcntl(second, set_lock, lock)
            except OSError as error:
                if error.errno in TAKEN:
                    return
                raise
    except OSError as error:
        if error.errno not in NO_LOCKS:
            return  # the folder is read-only, or the kernel is too old
        reason = str(error)
    else:
        reason = "two holders have the same lock"
    raise LedgerError(
        f"The file system of {folder} has no locks that work ({reason}), and a ledger there would "
        "be damaged: choose a folder on a local disk. Several machines need a data base server, "
        "such as those of Optuna's and Ax's storages."
    )


@contextlib.contextmanager
def _two_descriptions(folder: Path) -> Iterator[tuple[int, int]]:
    """Open a new file twice, which has no name any more, so that nothing is left of it."""
    with contextlib.ExitStack() as stack:
        first, name = tempfile.mkstemp(dir=folder, prefix=".locks-")
        stack.callback(os.close, first)
        try:
            second = os.open(name, os.O_RDWR)
        finally:
            os.unlink(name)
        stack.callback(os.close, second)
        yield first, second
