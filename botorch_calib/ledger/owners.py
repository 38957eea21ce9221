"""Which runs are using a ledger, and whether they still live.

A run is known by a name of its own. The process that runs it is known by its number and the time
at which it started, as numbers are given again after a process has ended. Where these cannot be
looked up, for example in another container, a run is alive as long as its heartbeat goes on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Self
from uuid import uuid4

# Seconds between two heartbeats of a run, and without any until it counts as dead. Where its
# process is known to live, that is suspended, or the run has ended without being able to say so.
BEAT_SECONDS = 10.0
DEAD_SECONDS = 60.0
SILENT_SECONDS = 600.0

PROC = Path("/proc")

# Names of the runs of this process that have not ended.
_own: set[str] = set()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_own.clear)


@dataclass(frozen=True)
class Owner:
    """A run that uses a ledger.

    Attributes:
        name: A random name.
        machine: What tells apart machines, their starts, and spaces of process numbers; empty if
            this is not known, so that processes cannot be looked up.
        pid: Number of the process.
        started: When the process started, in the kernel's units.
        beat: Number of heartbeats so far.
        turn: If the run is choosing a query, a number that tells this choice apart from others,
            else 0.
    """

    name: str
    machine: str
    pid: int
    started: str
    beat: int = 0
    turn: int = 0

    @classmethod
    def here(cls) -> Self:
        """A new run of this process."""
        owner = cls(uuid4().hex, _machine(), os.getpid(), _start_of(os.getpid()) or "")
        _own.add(owner.name)
        return owner

    def ended(self) -> None:
        """Take note that the run has ended, even if it could not be taken off the ledger."""
        _own.discard(self.name)

    def is_alive(self) -> bool | None:
        """Whether the process has not ended; None if this cannot be looked up from here."""
        if not self.machine or self.machine != _machine():
            return None
        started = _start_of(self.pid)
        if started is None and is_process(self.pid):
            return None  # some systems hide the processes of other users
        return self.started == started

    def is_here(self) -> bool:
        """Whether the process is this one."""
        return self.pid == os.getpid() and self.is_alive() is True

    def is_running(self) -> bool:
        """Whether a run of this process has not ended."""
        return self.name in _own


class Watch:
    """Decides which of the runs that are listed in a ledger are dead."""

    def __init__(self) -> None:
        self._beats = Stillness()

    def dead(self, owners: Iterable[Owner]) -> set[str]:
        """Names of the dead ones.

        Silence is measured on a clock of this process: those of others need not agree with it.
        """
        return {owner.name for owner in owners if not self._lives(owner)}

    def _lives(self, owner: Owner) -> bool:
        if owner.is_running() or owner.is_here():
            return owner.is_running()
        alive = owner.is_alive()
        silence = self._beats.seconds(owner.name, owner.beat)
        return alive is not False and silence < (SILENT_SECONDS if alive else DEAD_SECONDS)


class Stillness:
    """Measures for how long values have not changed."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}

    def seconds(self, name: str, value: int) -> float:
        """Seconds since the value of this name was first seen to be what it is."""
        now = time.monotonic()
        known, since = self._seen.get(name, (value, now))
        if known != value:
            since = now
        self._seen[name] = value, since
        return now - since


@cache
def _machine() -> str:
    try:
        boot = (PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink(PROC / 'self/ns/pid')}"
    except OSError:
        return ""


def _start_of(pid: int) -> str | None:
    """When a process started, empty if it has ended but is not reaped, None if there is none."""
    try:
        text = (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The second field, the name in parentheses, may hold anything, spaces and parentheses as well.
    state, *others = text.rpartition(")")[2].split()
    return "" if state in "ZX" else others[18]


def is_process(pid: int) -> bool:
    """Whether there is such a process; only for where there are signals, as on Linux."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to somebody else
        pass
    return True
