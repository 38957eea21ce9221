"""Fixtures and hooks of all tests, and the option ``--device``."""

import gc
import random
import signal
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from botorch.acquisition.multi_objective import logei
from gpytorch.settings import lazily_evaluate_kernels

from tests import timeouts
from tests.contracts import (
    AcquisitionContract,
    CalibratorContract,
    ModelContract,
    PosteriorContract,
)

CONTRACTS = (AcquisitionContract, CalibratorContract, ModelContract, PosteriorContract)

# Seconds that a slow test may take. All of them together take about a quarter of an hour.
SLOW_TIMEOUT = 1200
LONGEST_FIRST = {"integrations": 0, "tests": 1}  # by folder


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--device``, such as cuda: contracts and tests marked ``device`` run there."""
    parser.addoption("--device", default="cpu", help="cuda: contracts and tests marked `device`")


def pytest_configure(config: pytest.Config) -> None:
    """Reject a missing device, end hanging tests, and compile nothing."""
    config.pluginmanager.register(timeouts)
    check_device(config.getoption("--device"))
    leave_kernel()


def leave_kernel() -> None:
    """Have BoTorch compute log hypervolume improvement by PyTorch, as without a compiler.

    BoTorch compiles a kernel for this on first use, which takes a minute. If a time limit ends the
    compilation, a lock remains, for which later processes wait forever.
    tests/slow/test_compiled_kernel.py tests the kernel.
    """
    if hasattr(logei, "_load_attempted"):  # a private name
        logei._load_attempted = True


def check_device(name: str) -> None:
    """Raise ``UsageError`` unless tests can run on a device of this name."""
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise pytest.UsageError(f"--device {name}: {error}") from error
    if kind not in ("cpu", "cuda"):
        raise pytest.UsageError(f"--device {name}: cpu and cuda are what the tests know.")
    if kind == "cuda" and not torch.cuda.is_available():
        raise pytest.UsageError(f"--device {name}: PyTorch finds no CUDA here.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give slow tests their time, and select the tests that run on ``--device``.

    Tests of clients, then tests outside of folders, run first: their files take longest, and would
    leave one of two processes idle at the end.
    """
    items.sort(key=lambda item: LONGEST_FIRST.get(item.path.parent.name, len(LONGEST_FIRST)))
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT))
    select_for_device(config, items)


def pytest_collectstart() -> None:
    """Exempt imported objects from garbage collection: BayBE collects 56 times, 0.2 s each."""
    gc.freeze()


pytest_collection_finish = pytest_collectstart  # also while tests run


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed each test by its name, so that earlier tests on the same worker do not matter.

    Most tests seed their own draws, but BoTorch's searches use the global generator.
    """
    # Not 0, which is the seed of test data: later draws would give the same points.
    seed = zlib.crc32(item.nodeid.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def select_for_device(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Select contracts and marked tests on another device; other tests have oracles on the CPU.

    On the CPU, select one case of each test about another device, to check that it runs.
    """
    selected: dict[bool, list[pytest.Item]] = {True: [], False: []}
    seen: set[str] = set()
    for item in items:
        if config.getoption("--device") != "cpu":
            is_wanted = item.get_closest_marker("device") is not None or is_contract(item)
        else:
            test = item.nodeid.partition("[")[0]
            is_wanted = not is_elsewhere(item) or test not in seen
            seen.add(test)
        selected[is_wanted].append(item)
    config.hook.pytest_deselected(items=selected[False])
    items[:] = selected[True]


def is_elsewhere(item: pytest.Item) -> bool:
    """Whether a test is about data on a device that is not the default one."""
    marker = item.get_closest_marker("device")
    return marker is not None and not marker.kwargs.get("is_default", True)


def is_contract(item: pytest.Item) -> bool:
    """Whether a test is one of `tests.contracts`."""
    return issubclass(getattr(item, "cls", None) or object, CONTRACTS)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of ``--device``."""
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(autouse=True)
def default_device(request: pytest.FixtureRequest, device: torch.device) -> Iterator[None]:
    """Tensors are created on the device of ``--device`` unless a mark excludes the test."""
    if device.type == "cpu" or is_elsewhere(request.node):
        yield
        return
    with device:
        yield


@pytest.fixture(autouse=True, scope="session")
def heed_interrupts() -> Iterator[None]:
    """Let SIGINT interrupt the tests that send it, also in a shell's background process."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def lazy_kernels() -> None:
    """Each test starts from GPyTorch's default.

    GPyTorch turns this setting off while it evaluates a kernel. The setting is global, so two
    threads that evaluate kernels at the same time may leave it off for the rest of the process:
    the second thread finds it off, and restores that after the first thread has turned it on.
    """
    lazily_evaluate_kernels._set_state(None)


@pytest.fixture(autouse=True)
def default_precision() -> Iterator[None]:
    """Each test starts from PyTorch's default; Xopt changes it for the process on its import."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float32)
