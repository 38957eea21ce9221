"""Processes that write to ledgers and are killed, to be run as a script of its own.

Each writer is forked from a process that has imported the package once and has a single thread,
so that a round takes tens of milliseconds. A writer reports each call through a pipe after the
call has returned: that is what must not be lost.

    python -m tests.ledger.writers FOLDER TASK ...

where a task is ``kill,ROUNDS,SEED``, ``cut,ROUNDS,SEED``, ``contend,ROUNDS,WRITERS``,
``fork,FORKS`` or ``orphan``.
"""

from __future__ import annotations

import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from botorch_calib.exceptions import LedgerError
from botorch_calib.ledger import FeedbackLedger, storage

ROOT = Path(__file__).parents[2]
DIM = 3
Report = Callable[[dict[str, Any]], object]


def query(generator: random.Random) -> list[float]:
    return [generator.random() for _ in range(DIM)]


def value_at(x: list[float]) -> float:
    """Each trial's value follows from its query, so that no mixture of two goes unnoticed."""
    return math.sin(x[0]) + x[1] * x[2]


def note_on(trial_id: int) -> str:
    """A note of many pages, so that a writer may be killed between two of them."""
    return f"trial {trial_id} was lost. " * 5000


def write(path: Path, seed: int, report: Report) -> None:
    """Open a ledger, submit queries, and observe or fail each, forever."""
    ledger = FeedbackLedger.open(path, DIM)
    generator = random.Random(seed)
    report({"opened": True})
    while True:
        x = query(generator)
        trial_id = ledger.submit(x)
        report({"submitted": trial_id, "x": x})
        if generator.random() < 0.2:
            ledger.fail(trial_id, note_on(trial_id))
            report({"failed": trial_id})
        elif generator.random() < 0.8:
            ledger.observe(trial_id, value_at(x))
            report({"observed": trial_id})


@dataclass
class Child:
    """A forked process and the end of the pipe that its reports come from."""

    pid: int
    pipe: int

    @classmethod
    def fork(cls, run: Callable[[Report], None]) -> Child:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writing)
            return cls(pid, reading)
        status = 1
        try:
            os.close(reading)
            # Lines this short reach a pipe whole or not at all.
            run(lambda event: os.write(writing, f"{json.dumps(event)}\n".encode()))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def has_ended(self) -> bool:
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.pid, flags) is not None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def reports(self) -> list[dict[str, Any]]:
        """All that it has reported until its end, for which this waits."""
        with os.fdopen(self.pipe) as lines:
            events = [json.loads(line) for line in lines]
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert status in (0, -signal.SIGKILL, -signal.SIGXFSZ), f"a writer failed with {status}"
        return events


@dataclass
class Acknowledged:
    """The changes whose calls have returned."""

    queries: dict[int, list[float]] = field(default_factory=dict)
    observed: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)

    def add(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            if "submitted" in event:
                assert event["submitted"] not in self.queries, "an id was given twice"
                self.queries[event["submitted"]] = event["x"]
            elif "observed" in event:
                self.observed.add(event["observed"])
            elif "failed" in event:
                self.failed.add(event["failed"])

    def check(self, ledger: FeedbackLedger, num_unfinished: int) -> None:
        """The ledger holds all this, and of each writer that was killed at most a call more."""
        records = {record["id"]: record for record in ledger.to_records()}
        assert sorted(records) == list(range(len(records))), "ids are not 0, 1, ..."
        for trial_id, x in self.queries.items():
            kept = [records[trial_id][f"x_{i}"] for i in range(DIM)]
            assert kept == x, f"trial {trial_id} has another query"
        for trial_id, record in records.items():
            x = [record[f"x_{i}"] for i in range(DIM)]
            assert record["y"] in (None, value_at(x)), f"trial {trial_id} has another's value"
            if record["status"] == "failed":
                assert record["note"] == note_on(trial_id), f"trial {trial_id} has another's note"
        lost = {i for i in self.observed if records[i]["status"] != "observed"}
        lost |= {i for i in self.failed if records[i]["status"] != "failed"}
        assert not lost, f"changes of the trials {lost} are lost"
        known = len(self.queries) + len(self.observed) + len(self.failed)
        made = len(records) + sum(record["status"] != "pending" for record in records.values())
        assert known <= made <= known + num_unfinished, "changes that nobody made"


def has_unfinished_change(path: Path) -> bool:
    journal = path.with_name(f"{path.name}-journal")
    return journal.exists() and journal.stat().st_size > 0


def time_of_a_write(folder: Path, repeats: int = 5) -> float:
    """Seconds that a submission takes, which depends mostly on the disk."""
    with FeedbackLedger.open(folder / "timing.db", DIM) as ledger:
        start = time.perf_counter()
        for _ in range(repeats):
            ledger.submit([0.0] * DIM)
    return (time.perf_counter() - start) / repeats


def kill(folder: Path, rounds: int, seed: int) -> dict[str, int]:
    """Kill the writer in each of many rounds; a new file comes every tenth round."""
    generator = random.Random(seed)
    tally = {"rounds": 0, "acknowledged": 0, "unacknowledged": 0, "interrupted": 0, "unopened": 0}
    for i in range(rounds):
        if i % 10 == 0:
            # Measured again and again: other processes may make the machine slower or faster.
            longest_life = 0.02 + 5 * time_of_a_write(folder)
            path = folder / f"{i}.db"
            acknowledged, num_killed = Acknowledged(), 0
        child = Child.fork(partial(write, path, i))
        num_killed += 1
        # A new file is made in the first moments.
        time.sleep(generator.uniform(0, longest_life if i % 10 else 0.3 * longest_life))
        child.kill()
        events = child.reports()
        tally["unopened"] += not events
        acknowledged.add(events)
        if i % 10 and not events:
            # The machine has become slower since: the next ones are to get further.
            longest_life *= 2.0
        tally["interrupted"] += has_unfinished_change(path)
        with FeedbackLedger.open(path, DIM) as ledger:  # nobody holds a lock any more
            acknowledged.check(ledger, num_killed)
        tally["rounds"] += 1
        if i % 10 == 9 or i == rounds - 1:
            known = len(acknowledged.queries) + len(acknowledged.observed | acknowledged.failed)
            made = len(ledger) + sum(trial.status != "pending" for trial in ledger.trials)
            tally["acknowledged"] += known
            tally["unacknowledged"] += made - known
    return tally


def cut(folder: Path, rounds: int, seed: int) -> dict[str, int]:
    """End writers in the midst of a change for certain: when the file reaches a random size.

    Some pages of the change have then been written, and often a part of the next one.
    """
    generator, path, acknowledged = random.Random(seed), folder / "cut.db", Acknowledged()
    FeedbackLedger.open(path, DIM).close()
    interrupted = 0
    for i in range(rounds):
        limit = path.stat().st_size + generator.randrange(1, 2 * len(note_on(0)))

        def write_below(report: Report, i: int = i, limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            write(path, i, report)

        acknowledged.add(Child.fork(write_below).reports())
        interrupted += has_unfinished_change(path)
        acknowledged.check(FeedbackLedger.read(path), 0)
        with FeedbackLedger.open(path) as ledger:
            acknowledged.check(ledger, 0)
    return {"rounds": rounds, "interrupted": interrupted}


def contend(folder: Path, rounds: int, writers: int) -> dict[str, int]:
    """Let several processes open a ledger at the same time: one gets it, and the others its pid."""
    path, num_lost = folder / "contended.db", 0
    storage.WRITER_TIMEOUT = 0.2

    def attempt(start: float, report: Report) -> None:
        time.sleep(max(0.0, start - time.monotonic()))
        try:
            with FeedbackLedger.open(path, DIM) as ledger:
                report({"submitted": ledger.submit([0.0] * DIM), "pid": os.getpid()})
                time.sleep(60.0)  # until it is killed
        except LedgerError as error:
            report({"error": str(error)})

    for _ in range(rounds):
        start = time.monotonic() + 0.05
        children = [Child.fork(partial(attempt, start)) for _ in range(writers)]
        while sum(child.has_ended() for child in children) < writers - 1:
            time.sleep(0.01)
        for child in children:
            child.kill()
        events = [event for child in children for event in child.reports()]
        errors = [event["error"] for event in events if "error" in event]
        (winner,) = (event for event in events if "pid" in event)
        assert all(f"held by process {winner['pid']} " in error for error in errors), errors
        num_lost += len(errors)
    assert len(FeedbackLedger.read(path)) == rounds
    return {"rounds": rounds, "lost": num_lost}


def orphan(folder: Path) -> dict[str, int]:
    """A process that was forked from a writer outlives it, and keeps nobody from writing."""
    path, go_on = folder / "orphan.db", folder / "go on"

    def write_and_fork(report: Report) -> None:
        ledger = FeedbackLedger.open(path, DIM)
        ledger.submit([0.0] * DIM)
        if os.fork() == 0:
            try:
                while not go_on.exists():
                    time.sleep(0.01)
                assert len(ledger) == 1
                with FeedbackLedger.open(path) as own:
                    report({"submitted": own.submit([2.0] * DIM)})
            finally:
                os._exit(0)
        report({"opened": True})
        signal.pause()

    child = Child.fork(write_and_fork)
    os.read(child.pipe, 100)  # it has opened the ledger, and forked
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with FeedbackLedger.open(path) as ledger:
        ledger.submit([1.0] * DIM)
    go_on.touch()
    assert [event["submitted"] for event in child.reports()] == [2]
    return {"trials": len(FeedbackLedger.read(path))}


@contextmanager
def busy_threads(ledgers: list[FeedbackLedger]) -> Iterator[list[int]]:
    """Threads that write to ledgers all the time, and the number of times they did."""
    stop = threading.Event()
    counts = [0] * len(ledgers)

    def run(i: int) -> None:
        while not stop.is_set():
            ledgers[i].observe(ledgers[i].submit([0.0] * DIM), value_at([0.0] * DIM))
            counts[i] += 1

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(ledgers))]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def fork(folder: Path, forks: int) -> dict[str, int]:
    """Fork while threads are in the midst of writing; the children use the same ledgers."""
    memory, path = FeedbackLedger(DIM), folder / "forked.db"
    file = FeedbackLedger.open(path, DIM)
    # PyTorch prepares each of its operations at the first call. A process that is forked meanwhile
    # waits for ever for a thread that it does not have.
    first = FeedbackLedger(DIM)
    first.observe(first.submit([0.0] * DIM), value_at([0.0] * DIM))
    children = []
    with busy_threads([memory, file]) as counts:
        for i in range(forks):

            def use(report: Report, i: int = i) -> None:
                own = memory.submit([float(i)] * DIM)
                assert memory[own].x.tolist() == [float(i)] * DIM
                assert memory.trials[own].status == "pending"
                known = len(file)
                try:
                    file.submit([float(i)] * DIM)
                except LedgerError as error:
                    assert "forked" in str(error) and len(file) == known
                    report({"refused": i})

            children.append(Child.fork(use))
        for child in children:
            events = child.reports()
            assert len(events) == 1, "a forked process could not use the ledgers"
    assert len(file) == counts[1] == len(FeedbackLedger.read(path)) and len(memory) == counts[0]
    return {"forks": forks, "trials": len(file)}


def run_writers(folder: Path, *tasks: str) -> dict[str, dict[str, int]]:
    """Do tasks such as ``"kill,10,1,0"``: with real synchronisation, and away from any threads.

    Returns:
        For each task what it counted; a task that finds a fault fails the test.
    """
    command = [sys.executable, "-m", "tests.ledger.writers", str(folder), *tasks]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    tallies: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    for task, tally in tallies.items():
        print(f"\n{task}: {tally}", end="")
    return tallies


def main() -> None:
    tasks: dict[str, Callable[..., dict[str, int]]] = {
        "kill": kill,
        "cut": cut,
        "contend": contend,
        "fork": fork,
        "orphan": orphan,
    }
    tallies = {}
    for order in sys.argv[2:]:
        task, *numbers = order.split(",")
        tallies[order] = tasks[task](Path(sys.argv[1]), *map(int, numbers))
    print(json.dumps(tallies))


if __name__ == "__main__":
    main()
