"""Seeded random numbers that do not change torch's global random state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def random_stream(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global random numbers within a ``with`` block, and restore their state after it.

    The numbers on the CPU are seeded, and those on ``device`` if it is a CUDA device.
    """
    device = torch.device(device)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.random.default_generator.manual_seed(seed)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


def derived_seed(seed: int, *numbers: int) -> int:
    """Derive a seed from ``seed`` and ``numbers``; different arguments give independent streams."""
    return int(np.random.SeedSequence([seed, *numbers]).generate_state(1)[0])
