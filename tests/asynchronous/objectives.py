"""Objectives for worker processes, with few imports, since every new worker repeats them.

A query is one number, which determines the objective's action. Files in a folder record the
actions.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def square(x: np.ndarray) -> float:
    return float(x[0] ** 2)


def loaded_heavy_modules(x: np.ndarray) -> float:
    """How many of these modules the worker has imported."""
    return float(sum(name in sys.modules for name in ("torch", "botorch", "botorch_calib")))


def note_run(folder: Path, x: np.ndarray) -> None:
    """Add this process to the file of processes that have run the query."""
    with open(folder / f"runs-{x[0]:g}", "a", encoding="ascii") as file:
        file.write(f"{os.getpid()}\n")


def runs(folder: Path, query: float) -> list[int]:
    """Processes that have run a query, in order."""
    path = folder / f"runs-{query:g}"
    return [int(line) for line in path.read_text().split()] if path.exists() else []


def wait_until(condition: Callable[[], object]) -> None:
    """Return when the condition is true, or raise after a minute."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    raise TimeoutError


def wait_for_run(folder: Path, query: float) -> int:
    """Wait until a query has been run, and return the process that did so first."""
    wait_until(lambda: runs(folder, query))
    return runs(folder, query)[0]


def is_alive(pid: int) -> bool:
    """Whether the process exists, possibly as a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def noted_square(folder: Path, x: np.ndarray) -> float:
    note_run(folder, x)
    return square(x)


def die(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`, but query 1 kills its worker while 2 runs, which outlasts that."""
    note_run(folder, x)
    if x[0] == 1:
        wait_for_run(folder, 2)
        os.kill(os.getpid(), signal.SIGKILL)
    if x[0] == 2:
        worker = wait_for_run(folder, 1)
        wait_until(lambda: not is_alive(worker))
    return square(x)


def leave(folder: Path, code: int, by_libc: bool, x: np.ndarray) -> float:
    """As `noted_square`, but query 1 ends its process, by Python's or the C library's function."""
    note_run(folder, x)
    if x[0] == 1:
        ctypes.CDLL(None).exit(code) if by_libc else os._exit(code)
    return square(x)


def hang(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`; query 0 never returns, 1 takes a while, and 2 outlasts the end of 0."""
    note_run(folder, x)
    if x[0] == 0:
        signal.pause()
    if x[0] == 1:
        wait_for_run(folder, 0)
        time.sleep(1.5)
    if x[0] == 2:
        wait_until(lambda: not is_alive(wait_for_run(folder, 0)))
    return square(x)


def start_program(pipe: Path, x: np.ndarray) -> float:
    """As `square`, but a program goes on with the pipe; query 1 also kills its worker."""
    ignoring = "trap '' TERM; " if x[0] == 2 else ""
    with open(pipe, "w", encoding="ascii") as file:
        subprocess.Popen(["sh", "-c", f"{ignoring}exec sleep 600"], stdout=file)
    if x[0] == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return square(x)


def wait_for_go(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`, but queries from 2 on return only when a file called ``go`` is there."""
    note_run(folder, x)
    if x[0] >= 2:
        wait_until((folder / "go").exists)
    return square(x)


def interrupt(x: np.ndarray) -> float:
    """Raise in a worker what ctrl-C raises."""
    if x[0] == 1:
        raise KeyboardInterrupt
    return square(x)


class Stubborn(Exception):
    """An exception that can be pickled but not unpickled."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__("stubborn")


def send_badly(folder: Path, x: np.ndarray) -> Any:
    """As `noted_square`, but another process cannot unpickle the results of queries 1 to 3."""

    class Local(Exception):
        pass

    note_run(folder, x)
    if x[0] == 1:
        raise Stubborn(1, 2)
    if x[0] == 2:
        raise Local("only known here")
    return threading.Lock() if x[0] == 3 else square(x)


def nap(folder: Path, x: np.ndarray) -> float:
    """As `noted_square`, after a while that depends on the query."""
    note_run(folder, x)
    time.sleep(np.random.default_rng(int(x[0])).uniform(0.0, 0.2))
    return square(x)


def die_by_chance(folder: Path, seed: int, x: np.ndarray) -> float:
    """As `nap`, but one query in five always kills its worker, as a segfault does."""
    value = nap(folder, x)
    if dies(seed, x[0]):
        os.kill(os.getpid(), signal.SIGSEGV)
    return value


def dies(seed: int, query: float) -> bool:
    return bool(np.random.default_rng([seed, int(query)]).uniform() < 0.2)
