"""Random numbers on the default device; all devices get the same numbers."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def uniform(*shape: int, generator: Generator) -> Tensor:
    """Uniform numbers in [0, 1), in double precision."""
    numbers = torch.rand(*shape, dtype=torch.double, generator=generator, device="cpu")
    return numbers.to(torch.get_default_device())


def normal(*shape: int, generator: Generator) -> Tensor:
    """Standard normal numbers, in double precision."""
    numbers = torch.randn(*shape, dtype=torch.double, generator=generator, device="cpu")
    return numbers.to(torch.get_default_device())
