"""What all tests need."""

import signal
from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def heed_interrupts() -> Iterator[None]:
    """Tests send SIGINT, which a process started in a shell's background ignores, as do its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def default_precision() -> Iterator[None]:
    """Each test starts from PyTorch's default; Xopt changes it for the process on its import."""
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(torch.float32)
