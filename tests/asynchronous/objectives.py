"""Objectives that worker processes run. Only light imports: every new worker makes them again.

A query is one number, by which an objective knows what to do. Folders tell what was done.
"""

import ctypes
import gc
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any

import numpy as np


def square(x: np.ndarray) -> float:
    return float(x[0] ** 2)


def loaded_heavy_modules(x: np.ndarray) -> float:
    """How many of these modules the worker has imported."""
    return float(sum(name in sys.modules for name in ("torch", "botorch", "botorch_calib")))


def note_run(folder: Path, x: np.ndarray) -> None:
    """Add this process to a file of those that have run the query."""
    with open(folder / f"runs-{x[0]:g}", "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")


def runs(folder: Path, query: float) -> list[int]:
    """Processes that have run a query, in order."""
    path = folder / f"runs-{query:g}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_until(condition: Callable[[], object]) -> None:
    """Return when the condition holds, or raise after a minute."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise TimeoutError


def wait_for_run(folder: Path, query: float) -> int:
    """Wait until a query has been run, and return the process that did so first."""
    wait_until(lambda: runs(folder, query))
    return runs(folder, query)[0]


def noted_square(folder: Path, x: np.ndarray) -> float:
    note_run(folder, x)
    return square(x)


def die_once(folder: Path, deadly: float, x: np.ndarray) -> float:
    """As `noted_square`, but the first run of one query kills its worker."""
    note_run(folder, x)
    if x[0] == deadly and len(runs(folder, deadly)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(x)


def die_always(folder: Path, deadly: float, company: float, x: np.ndarray) -> float:
    """As `noted_square`, but one query always kills its worker, first while another one runs."""
    note_run(folder, x)
    if x[0] == deadly:
        wait_for_run(folder, company)
        os.kill(os.getpid(), signal.SIGKILL)
    if x[0] == company and len(runs(folder, company)) == 1:
        signal.pause()
    return square(x)


def hang(folder: Path, hanging: float, company: float, x: np.ndarray) -> float:
    """As `noted_square`, but one query never returns, and another one only in its second run."""
    note_run(folder, x)
    if x[0] == hanging or (x[0] == company and len(runs(folder, company)) == 1):
        signal.pause()
    return square(x)


def wait_for_go(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`, but queries from 2 on return only when a file called ``go`` is there."""
    note_run(folder, x)
    if x[0] >= 2:
        wait_until((folder / "go").exists)
    return square(x)


def interrupt(x: np.ndarray) -> float:
    """What ctrl-C does to a worker."""
    if x[0] == 1:
        raise KeyboardInterrupt
    return square(x)


class Stubborn(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("stubborn")


def raise_stubborn(x: np.ndarray) -> float:
    if x[0] == 1:
        raise Stubborn(1, 2)
    return square(x)


def nap(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`, after a while that depends on the query."""
    note_run(folder, x)
    time.sleep(np.random.default_rng(int(x[0])).uniform(0.0, 0.2))
    return square(x)


def die_by_chance(folder: Path, seed: int, x: np.ndarray) -> float:
    """As `noted_square`, but one in five first runs kills its worker, at some time."""
    note_run(folder, x)
    generator = np.random.default_rng([seed, int(x[0]), len(runs(folder, x[0]))])
    time.sleep(generator.uniform(0.0, 0.1))
    if len(runs(folder, x[0])) == 1 and generator.uniform() < 0.2:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(x)


def break_inside(x: np.ndarray) -> float:
    raise BrokenExecutor("inside")


def die_alone(folder: Path, deadly: float, company: float, x: np.ndarray) -> float:
    """As `noted_square`, but one query always kills its worker, and another one outlasts that."""
    note_run(folder, x)
    if x[0] == deadly:
        wait_for_run(folder, company)
        os.kill(os.getpid(), signal.SIGKILL)
    if x[0] == company:
        wait_until(lambda: len(runs(folder, deadly)) == 2)
    return square(x)


def die_often(folder: Path, every: int, x: np.ndarray) -> float:
    """As `noted_square`, but one query in ``every`` always kills its worker, as a segfault does."""
    note_run(folder, x)
    if x[0] % every == every - 1:
        os.kill(os.getpid(), signal.SIGSEGV)
    time.sleep(0.02)
    return square(x)


def exit_once(folder: Path, code: int, by_libc: bool, x: np.ndarray) -> float:
    """As `noted_square`, but query 1 ends its process, by Python's or the C library's function."""
    note_run(folder, x)
    if x[0] == 1:
        ctypes.CDLL(None).exit(code) if by_libc else os._exit(code)
    return square(x)


def send_badly(folder: Path, x: np.ndarray) -> Any:
    """As `noted_square`, but queries 1 to 4 bring what another process cannot read."""

    class Local(Exception):
        pass

    note_run(folder, x)
    if x[0] == 1:
        raise Stubborn(1, 2)
    if x[0] == 2:
        raise Local("only known here")
    return {3: Local, 4: threading.Lock()}.get(int(x[0]), square(x))


def die_with_lock(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`, but queries 1 and 2 are first killed while Pebble's lock is held."""
    note_run(folder, x)
    if x[0] in (1, 2) and len(runs(folder, x[0])) == 1:
        (channel,) = (each for each in gc.get_objects() if type(each).__name__ == "WorkerChannel")
        channel.mutex.acquire()
        if x[0] == 2:  # in a message: its length is sent, without the 100 bytes themselves
            os.write(channel.writer.fileno(), struct.pack("!i", 100))
        os.kill(os.getpid(), signal.SIGKILL)
    return square(x)


def hang_alone(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`; query 0 never returns, 1 takes a while, 2 outlasts the end of 0."""
    note_run(folder, x)
    if x[0] == 0:
        signal.pause()
    if x[0] == 1:
        time.sleep(1.5)
    if x[0] == 2:
        wait_until(lambda: not is_alive(wait_for_run(folder, 0)))
    return square(x)


def is_alive(pid: int) -> bool:
    """Whether there is such a process, dead ones that nobody has waited for included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def sleep_long(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`, but from query 1 on after ten minutes in a program of its own."""
    note_run(folder, x)
    if x[0]:
        subprocess.run(["sleep", "600"])
    return square(x)


def leave_programs_behind(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`, but query 0 waits for a program, and 1 crashes while one is running."""
    import fcntl

    note_run(folder, x)
    if x[0] < 2:
        with open(folder / f"locked-{x[0]:g}", "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            program = subprocess.Popen(["sleep", "600"], pass_fds=[file.fileno()])
        if x[0] == 1:
            os.kill(os.getpid(), signal.SIGSEGV)
        program.wait()
    return square(x)


def is_unlocked(path: Path) -> bool:
    """Whether the last program that held this file has ended."""
    import fcntl

    with open(path, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def leave_thread_behind(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`, but a thread goes on for which its process waits when it is to end."""
    note_run(folder, x)
    threading.Thread(target=time.sleep, args=(600.0,)).start()
    return square(x)


def in_hanging_region(x: np.ndarray) -> bool:
    """A disc in the unit square that holds the maximizer of `hang_at_the_top`."""
    return float(((x - 0.6) ** 2).sum()) < 0.2**2


def hang_at_the_top(x: np.ndarray) -> float:
    """Best at (0.6, 0.6), in a region where no evaluation returns."""
    if in_hanging_region(x):
        time.sleep(600.0)
    return 1.0 - 4.0 * float(((x - 0.6) ** 2).sum())
