"""A test that hangs becomes a failure, and `.ci/run` ends whatever its checks leave behind."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

pytestmark = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="reads /proc")

HANGING = """
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor

import pytest

@pytest.fixture
def slow_to_end():
    yield
    time.sleep(1000)

def test_failed(slow_to_end):
    assert False

def test_forked_child():
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        pool.submit(time.sleep, 1000)

def test_after():
    pass
"""


def test_hanging_tests_fail_by_name(tmp_path: Path) -> None:
    """A child holds the pipe to xdist and a `with` block waits for it; a fixture does not end."""
    pytest.importorskip("xdist")
    (tmp_path / "test_hanging.py").write_text(HANGING)
    plugins = ["-p", "tests.timeouts", "-p", "no:cacheprovider"]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-n1", "--timeout=1", "-c", os.devnull],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert run.returncode == 1
    for name, place in (("test_forked_child", "in shutdown"), ("test_failed", "in slow_to_end")):
        assert f"test_hanging.py::{name} took more than 1 s" in run.stdout
        assert place in run.stdout
        assert f"crashed while running 'test_hanging.py::{name}'" in run.stdout
    assert "3 failed, 1 passed" in run.stdout.splitlines()[-1]  # one in its body and at its end


SUMMARY = "===== 3 passed in 1.20s ====="


@pytest.mark.parametrize(
    ("lint", "recipe", "limit", "status", "last_lines"),
    [
        ("true", "true", "60", 0, [SUMMARY]),
        ("exit 3", "true", "60", 2, [SUMMARY]),
        # Orphans with the standard output of the tests, in their session and in another one.
        ("true", "sleep 1000 & setsid sleep 1000 & true", "60", 0, [SUMMARY]),
        ("true", "sleep 1000", "2", 124, ["not done after 2", SUMMARY]),
    ],
)
def test_ci_run_ends(
    tmp_path: Path, lint: str, recipe: str, limit: str, status: int, last_lines: list[str]
) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "Makefile").write_text(
        ".PHONY: venv lint docs test\n"
        f"venv docs:\n\t@true\nlint:\n\t@{lint}\n"
        f"test:\n\t@echo '{SUMMARY}'\n\t@echo $$CI_RUN >mark\n\t@{recipe}\n"
    )
    run = subprocess.run(
        [tmp_path / ".ci" / "run"],
        env=os.environ | {"CI_LIMIT": limit},
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
    )
    assert run.returncode == status
    assert run.stdout.splitlines()[-len(last_lines) :] == last_lines
    mark = f"CI_RUN={(tmp_path / 'mark').read_text().strip()}".encode()
    assert not any(mark in environment for environment in environments())


def environments() -> list[bytes]:
    """The environments of all running processes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            found.append(path.read_bytes())
        except OSError:  # it has ended, or belongs to someone else
            continue
    return found
