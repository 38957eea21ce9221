"""What all tests need."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def heed_interrupts() -> Iterator[None]:
    """Tests send SIGINT, which a process started in a shell's background ignores, as do its own."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
