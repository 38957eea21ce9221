"""A test that hangs ends its process: xdist reports it by name and continues in another process.

A plugin of pytest-timeout, whose methods do not suffice. Its method "signal" raises in the main
thread: it cannot end compiled code, and a test that leaves a ``with`` block of an executor waits
there forever. Its method "thread" ends the process, but xdist loses its output, and a forked child
of the test keeps open the pipe by which xdist would notice.
"""

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

STDERR = pytest.StashKey[int]()
SECONDS = pytest.StashKey[float]()
TIMER = pytest.StashKey[threading.Timer]()
CLOCK = "clock of a test"
# Seconds after which a watchdog in C ends a process whose Python threads cannot run.
GRACE = 30.0


def pytest_configure(config: pytest.Config) -> None:
    """Keep the standard error of the process, which is redirected while tests run."""
    with config.pluginmanager.get_plugin("capturemanager").global_and_fixture_disabled():  # type: ignore[union-attr]
        config.stash[STDERR] = os.dup(2)


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Start the clock of a test."""
    item.stash[SECONDS] = settings.timeout
    start_clock(item)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """Stop the clock of a test that has ended, or has failed and may be in a debugger."""
    faulthandler.cancel_dump_traceback_later()
    if TIMER in item.stash:
        item.stash[TIMER].cancel()
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Start the clock again, since the teardown of a failed test may hang."""
    if TIMER in item.stash:
        item.stash[TIMER].cancel()
        start_clock(item)


def start_clock(item: pytest.Item) -> None:
    """End the process after the seconds of a test, unless its timer is cancelled."""
    stderr, seconds = item.config.stash[STDERR], item.stash[SECONDS]
    item.stash[TIMER] = timer = threading.Timer(
        seconds, end_process, (item.nodeid, seconds, stderr)
    )
    timer.name, timer.daemon = CLOCK, True
    timer.start()
    faulthandler.dump_traceback_later(seconds + GRACE, exit=True, file=stderr)


def threads_of_tests() -> set[threading.Thread]:
    """The running threads, except the clocks."""
    return {thread for thread in threading.enumerate() if thread.name != CLOCK}


def end_process(name: str, seconds: float, stderr: int) -> None:
    """Report which test hangs and where, and end this process and its children."""
    os.write(stderr, f"\n{name} took more than {seconds:g} s. Its threads:\n".encode())
    faulthandler.dump_traceback(file=stderr)
    children = list(children_of(os.getpid()))
    # No other thread runs from here: a test that waits for a child would pass.
    sys.setswitchinterval(GRACE)
    for child in children:
        try:
            os.kill(child, signal.SIGKILL)
        except ProcessLookupError:
            pass
    os._exit(1)


def children_of(pid: int) -> Iterator[int]:
    """The children of a process, and their children, if the system lists them (Linux)."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            yield from children_of(child)
            yield child
