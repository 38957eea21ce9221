"""Run the clients' own tests against the classes of this package in place of theirs.

    python -m tests.downstream.run [CLIENT ...] [-- ARGUMENTS OF PYTEST]

Tests are those of the installed versions. Ax, Xopt and blop install theirs; those of
optuna-integration are fetched from its repository, and BayBE's from its source distribution, into
``build/downstream`` unless they are there. None is copied into this repository.
"""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import tarfile
import urllib.request
from importlib.metadata import version
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).parents[2]
FETCHED = ROOT / "build" / "downstream"


def installed(package: str) -> Path:
    """The folder above an installed package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[1]


def from_repository(project: str, name: str) -> Path:
    """The sources of a project on GitHub, at the tag of the installed version."""
    number = version(name)
    folder = FETCHED / f"{name}-{number}"
    if not folder.exists():
        url = f"https://github.com/{project}/archive/refs/tags/v{number}.tar.gz"
        with urllib.request.urlopen(url) as answer:
            _unpack(answer.read())
    return folder


def from_source_distribution(name: str) -> Path:
    """The sources of a distribution on PyPI, at the installed version."""
    number = version(name)
    folder = FETCHED / f"{name}-{number}"
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", ":all:"]
        subprocess.run([*pip, "-d", str(FETCHED), f"{name}=={number}"], check=True)
        _unpack((FETCHED / f"{name}-{number}.tar.gz").read_bytes())
    return folder


def _unpack(archive: bytes) -> None:
    FETCHED.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(FETCHED, filter="data")


def suite(client: str) -> tuple[Path, list[str]]:
    """Where the tests of a client are, and which of them are run."""
    if client == "ax":
        return installed("ax"), ["ax/generators/torch/tests/test_generator.py"]
    if client == "xopt":
        names = ("upper_confidence_bound", "expected_improvement", "mobo", "bayesian_generator")
        return installed("xopt"), [f"xopt/tests/generators/bayesian/test_{n}.py" for n in names]
    if client == "blop":
        return installed("blop"), ["blop/tests/xopt"]
    if client == "optuna":
        folder = from_repository("optuna/optuna-integration", "optuna-integration")
        own = str(HERE / "optuna_samplers.py")  # which Optuna's test cases test
        return folder, ["tests/botorch/test_botorch.py", own]
    own_names = ("test_pending_experiments", "integration/test_minimization")
    return from_source_distribution("baybe"), [f"tests/{name}.py" for name in own_names]


def main(arguments: list[str]) -> int:
    """Run the clients that are named, or all; 1 if anything failed."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    clients, options = arguments[:place], arguments[place + 1 :]
    failed = False
    for client in clients or ["ax", "optuna", "xopt", "blop", "baybe"]:
        folder, files = suite(client)
        print(f"== {client}", flush=True)
        command = [sys.executable, "-m", "pytest", "-c", str(HERE / "pytest.ini")]
        path = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*command, "--rootdir", ".", "--client", client, *options, *files],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path},
        )
        failed |= done.returncode != 0
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
