"""A test that hangs becomes a failure."""

import os
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
    """One child keeps the pipe to xdist open while a `with` block waits; one fixture never ends."""
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
    assert "3 failed, 1 passed" in run.stdout.splitlines()[-1]  # one fails twice
