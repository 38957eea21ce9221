"""Whether a run still lives, by its process or by its heartbeat, and whether locks work."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from botorch_calib.exceptions import DamagedLedgerError, LedgerError
from botorch_calib.ledger import FeedbackLedger, file_locks, owners, presence
from botorch_calib.ledger.owners import Owner, Watch
from botorch_calib.ledger.presence import Presence
from botorch_calib.ledger.storage_on_disk import SQLiteStorage

needs_proc = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc"
)


@needs_proc
class TestLookUp:
    def test_this_process(self) -> None:
        owner = Owner.here()
        assert owner.is_here() and Watch().dead([owner]) == set()
        owner.ended()
        assert owner.is_here() and Watch().dead([owner]) == {owner.name}

    def test_another_process(self) -> None:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            started = owners._start_of(process.pid)
            assert started is not None
            owner = replace(Owner.here(), pid=process.pid, started=started)
            assert owner.is_alive() is True and not owner.is_here()
            # A number that was given again belongs to another process.
            assert replace(owner, started=str(int(started) - 1)).is_alive() is False
            process.kill()
            # It has ended, though it has not been waited for: a zombie.
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
            assert owner.is_alive() is False
        assert owner.is_alive() is False

    def test_a_fork_takes_over_nothing(self) -> None:
        owner = Owner.here()
        pid = os.fork()
        if not pid:  # pragma: no cover - a process of its own
            os._exit(owner.is_running() or owner.is_here())
        assert os.waitpid(pid, 0)[1] == 0 and owner.is_running()

    def test_names_of_processes_may_hold_anything(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "7").mkdir()
        numbers = " ".join(str(i) for i in range(4, 53))
        (tmp_path / "7" / "stat").write_text(f"7 (a) Z (b c) S {numbers}\n")
        monkeypatch.setattr(owners, "PROC", tmp_path)
        assert owners._start_of(7) == "22"  # field 22 of proc(5)

    def test_hidden_processes(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whether they live cannot be looked up."""
        owner = Owner.here()
        monkeypatch.setattr(owners, "PROC", tmp_path)
        assert owner.is_alive() is None

    @pytest.mark.parametrize("machine", ["", "another start of the machine"])
    def test_elsewhere(self, machine: str) -> None:
        assert replace(Owner.here(), machine=machine).is_alive() is None


class TestHeartbeat:
    def test_silence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It counts from the first look, on this process's own clock."""
        now = 1000.0
        monkeypatch.setattr(owners, "time", SimpleNamespace(monotonic=lambda: now))
        watch, owner = Watch(), replace(Owner.here(), name="a", machine="elsewhere", beat=5)
        assert watch.dead([owner]) == set()
        now += owners.DEAD_SECONDS - 1
        assert watch.dead([owner]) == set()
        owner = replace(owner, beat=6)
        assert watch.dead([owner]) == set()
        now += owners.DEAD_SECONDS - 1
        assert watch.dead([owner]) == set()
        now += 1
        assert watch.dead([owner]) == {owner.name}

    def test_runs_of_this_process_need_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Not even where processes cannot be looked up."""
        now = 0.0
        monkeypatch.setattr(owners, "time", SimpleNamespace(monotonic=lambda: now))
        monkeypatch.setattr(owners, "_machine", lambda: "")
        watch, owner = Watch(), Owner.here()
        assert watch.dead([owner]) == set()
        now = 1e6
        assert watch.dead([owner]) == set()

    @needs_proc
    def test_silence_of_a_process_that_lives(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Its run may have ended without being able to say so."""
        now, parent = 0.0, os.getppid()
        monkeypatch.setattr(owners, "time", SimpleNamespace(monotonic=lambda: now))
        owner = replace(Owner.here(), name="a", pid=parent, started=owners._start_of(parent) or "")
        watch = Watch()
        assert watch.dead([owner]) == set()
        now = owners.SILENT_SECONDS - 1
        assert watch.dead([owner]) == set()
        now += 1
        assert watch.dead([owner]) == {owner.name}

    def test_runs_on_a_file_have_one(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(presence, "BEAT_SECONDS", 0.001)
        ledger = FeedbackLedger.open(tmp_path / "ledger", 1)

        def beat() -> int:
            (owner,) = ledger._storage.stock()[1].values()
            return owner.beat

        with Presence(ledger._storage) as run:
            run.take_turn()
            while beat() < 3:
                pass
        assert ledger._storage.stock()[1] == {}

    def test_a_dead_run_is_taken_off_the_list(self, monkeypatch: pytest.MonkeyPatch) -> None:
        now, ledger = 0.0, FeedbackLedger(1)
        monkeypatch.setattr(owners, "time", SimpleNamespace(monotonic=lambda: now))
        other = replace(Owner.here(), name="a", machine="elsewhere", turn=1)
        with ledger._storage.transaction() as change:
            change.owners[other.name] = other
        trial_id = ledger.submit([0.0])
        ledger._storage.change(trial_id, lambda entry, clock: replace(entry, owner=other.name))
        with Presence(ledger._storage) as run:
            assert run.stock().num_running == 1 and run.stock().orphans == ()
            assert not run.take_turn() and run.claim(5) is None
            now = 2 * owners.DEAD_SECONDS
            assert run.stock().num_running == 0 and run.stock().orphans == (0,)
            assert run.take_turn() and run.claim(1) == 0
            assert run.claim(5) is None and run.stock().num_running == 1


class TestClaims:
    def test_no_more_than_are_needed(self) -> None:
        ledger = FeedbackLedger(1)
        for _ in range(3):
            ledger.submit([0.0])
        with Presence(ledger._storage) as first, Presence(ledger._storage) as second:
            assert (first.claim(2), second.claim(2), first.claim(2)) == (0, 1, None)
            ledger.observe(0, 1.0)
            ledger.fail(1)
            assert first.stock().num_resolved == 2 and first.claim(2) is None
            assert first.submit([1.0], 3, goal=2) is None and len(ledger) == 3
            assert first.submit([1.0], 2, goal=9) is None and len(ledger) == 3
            assert first.submit([1.0], 3, goal=9) == 3
            assert second.stock().orphans == (2,)

    def test_what_is_submitted_by_hand_during_a_run_is_left_alone(self) -> None:
        ledger = FeedbackLedger(1)
        with Presence(ledger._storage) as run:
            ledger.submit([0.0])
            assert run.stock().orphans == ()

    def test_a_submission_that_cannot_be_written_leaves_no_turn(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise LedgerError("the disk is full")

        ledger = FeedbackLedger.open(tmp_path / "ledger.db", 1)
        with monkeypatch.context() as patch, Presence(ledger._storage) as run:
            assert run.take_turn()
            patch.setattr(SQLiteStorage, "_write", fail)
            with pytest.raises(LedgerError, match="disk is full"):
                run.submit([0.0], 0)
            patch.undo()
        assert ledger._storage.stock()[1] == {} and len(ledger) == 0

    def test_damaged_lists_are_refused(self, tmp_path: Path) -> None:
        ledger = FeedbackLedger.open(tmp_path / "ledger.db", 1)
        with ledger._storage.transaction() as change:
            change.owners["a"] = replace(Owner.here(), name="a", pid="x")  # type: ignore[arg-type]
        with pytest.raises(DamagedLedgerError, match=r"list of runs.*ledger\.db"):
            ledger.submit([0.0])


@pytest.mark.skipif(not hasattr(file_locks.fcntl, "F_OFD_SETLK"), reason="such locks are Linux's")
class TestLocks:
    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
    def test_file_systems_without_locks_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
    ) -> None:
        def refuse(*_: Any) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(file_locks.fcntl, "fcntl", refuse)
        with pytest.raises(LedgerError, match="has no locks that work.*Optuna's and Ax's"):
            FeedbackLedger.open(tmp_path / "ledger", 1)
        assert list(tmp_path.iterdir()) == []

    def test_locks_that_exclude_nobody_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(file_locks.fcntl, "fcntl", lambda *_: None)
        with pytest.raises(LedgerError, match="two holders"):
            FeedbackLedger.open(tmp_path / "ledger", 1)

    def test_locks_that_work(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file_locks.check_locks(tmp_path)
        assert list(tmp_path.iterdir()) == []

        def unknown(*_: Any) -> None:
            raise OSError(errno.EINVAL, "an old kernel")

        monkeypatch.setattr(file_locks.fcntl, "fcntl", unknown)
        file_locks.check_locks(tmp_path)  # it cannot be told
        file_locks.check_locks(tmp_path / "missing")
