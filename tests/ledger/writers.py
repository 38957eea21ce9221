"""A script of processes that write to ledgers and are killed.

Each writer is forked from a process with a single thread that has imported the package, so a round
takes tens of milliseconds. A writer reports each call through a pipe after the call has returned:
reported changes must not be lost.

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
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from botorch_calib.exceptions import LedgerError
from botorch_calib.ledger import FeedbackLedger, storage

ROOT = Path(__file__).parents[2]
DIM = 3
Report = Callable[[dict[str, Any]], object]


def value_at(x: list[float]) -> float:
    """Each trial's value follows from its query, so that no mixture of two goes unnoticed."""
    return math.sin(x[0]) + x[1] * x[2]


def note_on(trial_id: int) -> str:
    """A note of many pages, so that a writer may be killed between two pages."""
    return f"trial {trial_id} was lost. " * 5000


def write(path: Path, seed: int, report: Report) -> None:
    """Open a ledger, submit queries, and observe or fail each, forever.

    Reports are parts of the trials' records.
    """
    ledger = FeedbackLedger.open(path, DIM)
    generator = random.Random(seed)
    report({})
    while True:
        x = [generator.random() for _ in range(DIM)]
        trial_id = ledger.submit(x)
        report({"id": trial_id, **{f"x_{i}": value for i, value in enumerate(x)}})
        if generator.random() < 0.2:
            ledger.fail(trial_id, note_on(trial_id))
            report({"id": trial_id, "status": "failed"})
        elif generator.random() < 0.8:
            ledger.observe(trial_id, value_at(x))
            report({"id": trial_id, "status": "observed"})


class Child:
    """A forked process, and the lines that it reports."""

    def __init__(self, run: Callable[[Report], None]) -> None:
        reading, writing = os.pipe()
        self.pid = os.fork()
        if self.pid:
            os.close(writing)
            self.lines = os.fdopen(reading)
            return
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

    def report(self) -> dict[str, Any]:
        """The next one, for which this waits."""
        event: dict[str, Any] = json.loads(self.lines.readline())
        return event

    def reports(self) -> list[dict[str, Any]]:
        """All others until its end, for which this waits."""
        with self.lines:
            events = [json.loads(line) for line in self.lines]
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        assert status in (0, -signal.SIGKILL, -signal.SIGXFSZ), f"a writer failed with {status}"
        return events


def check(ledger: FeedbackLedger, reports: list[dict[str, Any]], killed: int) -> tuple[int, int]:
    """The ledger has all reported changes, and at most one more for each killed writer.

    Returns the numbers of acknowledged changes and of changes in the ledger.
    """
    records, acknowledged = ledger.to_records(), [event for event in reports if event]
    assert [record["id"] for record in records] == list(range(len(records)))
    for record in records:
        x = [record[f"x_{i}"] for i in range(DIM)]
        assert record["y"] in (None, value_at(x)), f"another's value: {record}"
        assert record["note"] == note_on(record["id"]) * (record["status"] == "failed")
    for event in acknowledged:
        assert event.items() <= records[event["id"]].items(), f"lost: {event}"
    assert len({(event["id"], len(event)) for event in acknowledged}) == len(acknowledged)
    made = len(records) + sum(record["status"] != "pending" for record in records)
    assert len(acknowledged) <= made <= len(acknowledged) + killed, "changes that nobody made"
    return len(acknowledged), made


def has_unfinished_change(path: Path) -> bool:
    journal = path.with_name(f"{path.name}-journal")
    return journal.exists() and journal.stat().st_size > 0


def kill(folder: Path, rounds: int, seed: int) -> dict[str, int]:
    """Kill the writer in each of many rounds; a new file comes every tenth round."""
    generator = random.Random(seed)
    tally = {"rounds": rounds, "acknowledged": 0, "unacknowledged": 0, "interrupted": 0}
    for i in range(rounds):
        if i % 10 == 0:
            path, reports = folder / f"{i}.db", []
        start, child = time.monotonic(), Child(partial(write, path, i))
        num_calls = generator.randrange(7)
        reports += [child.report() for _ in range(num_calls)]
        # In the next call, which takes about as long as each of those before, or the opening.
        length = (time.monotonic() - start) / num_calls if num_calls else 0.005
        time.sleep(generator.uniform(0.0, length))
        child.kill()
        reports += child.reports()
        tally["interrupted"] += has_unfinished_change(path)
        with FeedbackLedger.open(path, DIM) as ledger:  # no process has a lock any more
            known, made = check(ledger, reports, i % 10 + 1)
        if i % 10 == 9 or i == rounds - 1:
            tally["acknowledged"] += known
            tally["unacknowledged"] += made - known
    return tally


def cut(folder: Path, rounds: int, seed: int) -> dict[str, int]:
    """End writers in the midst of a change for certain: when the file reaches a random size.

    Some pages of the change have then been written, and often a part of the next one.
    """
    generator, path, reports = random.Random(seed), folder / "cut.db", []
    FeedbackLedger.open(path, DIM).close()
    interrupted = 0
    for i in range(rounds):
        limit = path.stat().st_size + generator.randrange(1, 2 * len(note_on(0)))

        def write_below(report: Report, i: int = i, limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            write(path, i, report)

        reports += Child(write_below).reports()
        interrupted += has_unfinished_change(path)
        check(FeedbackLedger.read(path), reports, 0)
        with FeedbackLedger.open(path) as ledger:
            check(ledger, reports, 0)
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
        children = [Child(partial(attempt, start)) for _ in range(writers)]
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
    """A process forked from a writer outlives the writer, and other processes can still write."""
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

    child = Child(write_and_fork)
    child.report()  # it has opened the ledger, and forked
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    with FeedbackLedger.open(path) as ledger:
        ledger.submit([1.0] * DIM)
    go_on.touch()
    assert [event["submitted"] for event in child.reports()] == [2]
    return {"trials": len(FeedbackLedger.read(path))}


def fork(folder: Path, forks: int) -> dict[str, int]:
    """Fork while threads are in the midst of writing; the children use the same ledgers."""
    memory, file = FeedbackLedger(DIM), FeedbackLedger.open(folder / "forked.db", DIM)
    # PyTorch prepares each of its operations at the first call. A process that is forked meanwhile
    # waits forever for a thread that it does not have.
    first = FeedbackLedger(DIM)
    first.observe(first.submit([0.0] * DIM), value_at([0.0] * DIM))
    stop, counts = threading.Event(), {memory: 0, file: 0}

    def keep_writing(ledger: FeedbackLedger) -> None:
        while not stop.is_set():
            ledger.observe(ledger.submit([0.0] * DIM), value_at([0.0] * DIM))
            counts[ledger] += 1

    def use(report: Report) -> None:
        own = memory.submit([1.0] * DIM)
        assert memory[own].x.tolist() == [1.0] * DIM and memory[own].status == "pending"
        known = len(file)
        try:
            file.submit([1.0] * DIM)
        except LedgerError as error:
            assert "forked" in str(error) and len(file) == known
            report({"refused": known})

    threads = [threading.Thread(target=keep_writing, args=(ledger,)) for ledger in counts]
    for thread in threads:
        thread.start()
    try:
        for child in [Child(use) for _ in range(forks)]:
            assert len(child.reports()) == 1, "a forked process could not use the ledgers"
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert len(file) == counts[file] == len(FeedbackLedger.read(folder / "forked.db"))
    assert len(memory) == counts[memory]
    return {"forks": forks}


def run_writers(folder: Path, *tasks: str) -> dict[str, dict[str, int]]:
    """Do tasks such as ``"kill,10,1,0"``, with real synchronisation and without threads.

    Returns the counts of each task; a fault in a task fails the test.
    """
    command = [sys.executable, "-m", "tests.ledger.writers", str(folder), *tasks]
    done = subprocess.run(command, cwd=ROOT, input="", capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    tallies: dict[str, dict[str, int]] = json.loads(done.stdout.splitlines()[-1])
    for task, tally in tallies.items():
        print(f"\n{task}: {tally}", end="")
    return tallies


def main() -> None:
    tasks: dict[str, Callable[..., dict[str, int]]] = {
        task.__name__: task for task in (kill, cut, contend, fork, orphan)
    }
    tallies = {}
    for order in sys.argv[2:]:
        task, *numbers = order.split(",")
        tallies[order] = tasks[task](Path(sys.argv[1]), *map(int, numbers))
    print(json.dumps(tallies), flush=True)
    if path := sys.stdin.readline().strip():  # of a ledger; each further line adds a query to it
        ledger = FeedbackLedger.open(path)
        print("open", flush=True)
        for _ in sys.stdin:
            print(ledger.submit([0.1, 0.2, 0.3]), flush=True)


if __name__ == "__main__":
    main()
