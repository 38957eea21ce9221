"""Helpers of all contracts."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64)


def uniform(*shape: int, seed: int = 0) -> Tensor:
    """Fixed points of the unit cube, equal on all default devices."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(*shape, dtype=torch.double, generator=generator, device="cpu")
    return points.to(torch.get_default_device())


def copies(value: Any) -> list[Any]:
    """A deep copy and a pickled copy."""
    return [copy.deepcopy(value), pickle.loads(pickle.dumps(value))]


def saved_state(module: Any) -> dict[str, Any]:
    """A state dict, saved and loaded again."""
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    return torch.load(buffer)


def leaves_of(value: Tensor) -> list[Tensor]:
    """The tensors requiring gradient from which ``value`` was computed."""
    found, seen, stack = [], set(), [value.grad_fn]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        stack.extend(child for child, _ in node.next_functions)
    return found


def check_gradient(value: Tensor, inputs: list[Tensor]) -> None:
    """Check that the gradient of ``value`` is finite and not all zero."""
    assert inputs, "nothing that requires gradient enters the value"
    grads = torch.autograd.grad(value.sum(), inputs, retain_graph=True, allow_unused=True)
    known = [grad for grad in grads if grad is not None]
    assert all(grad.isfinite().all() for grad in known)
    assert any((grad != 0).any() for grad in known)
