"""Random numbers that are the same ones on any default device, where they then lie."""

from __future__ import annotations

import torch
from torch import Generator, Tensor


def uniform(*shape: int, generator: Generator) -> Tensor:
    """In [0, 1), in double precision."""
    numbers = torch.rand(*shape, dtype=torch.double, generator=generator, device="cpu")
    return numbers.to(torch.get_default_device())


def normal(*shape: int, generator: Generator) -> Tensor:
    """Standard normal ones, in double precision."""
    numbers = torch.randn(*shape, dtype=torch.double, generator=generator, device="cpu")
    return numbers.to(torch.get_default_device())
