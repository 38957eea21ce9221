"""Counts of the operations that a call dispatches, and of its waits for the device.

On a device, the cost of a small batch is the number of operations times the launch time of a
kernel, and reading back a number stalls the queue. Both can be counted on any machine and, unlike
times, do not depend on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

# A read is attributed to the innermost of these packages on the stack.
_OWN = "botorch_calib"
_PACKAGES = (_OWN, "botorch", "gpytorch", "linear_operator")
# Operations without arithmetic, although their schemas do not declare an alias.
_METADATA = ("_unsafe_view", "empty", "new_empty", "empty_like", "empty_strided")
# Operations for whose result, or its shape, the processor has to wait.
_READS = (
    "_local_scalar_dense",
    "equal",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
)
# With a mask, these operations first read which elements are true.
_INDEXED = ("index", "index_put", "index_put_", "_index_put_impl_")


@dataclass(frozen=True)
class Operations:
    """Counts for one call.

    Attributes:
        dispatched: Number of PyTorch operations, including the backward pass, except those that
            only make a view, allocate memory or read a number.
        host_reads: Number of waits of the processor for a result.
        own_host_reads: Number of these waits in ``botorch_calib`` itself, not in BoTorch, GPyTorch
            or linear_operator.
    """

    dispatched: int
    host_reads: int
    own_host_reads: int


def count_operations(call: Callable[[], object]) -> Operations:
    """Run a call and count its operations. Run the call before, to fill its caches.

    Reads that PyTorch does not dispatch on a CPU, such as ``Tensor.tolist``, are not counted.
    """
    with _Counter() as counter:
        call()
    return Operations(counter.dispatched, counter.host_reads, counter.own_host_reads)


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.dispatched = self.host_reads = self.own_host_reads = 0

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        reads = name in _READS or (name in _INDEXED and _has_mask(args[1]))
        if reads:
            self.host_reads += 1
            self.own_host_reads += _asking_package(sys._getframe(1)) == _OWN
        # Indexing by a mask is a read and an operation.
        if not (name in _METADATA or name in _READS or _is_view(func)):
            self.dispatched += 1
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Any) -> bool:
    return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in indices)


def _is_view(func: Any) -> bool:
    """Whether a result is an alias of an argument that was not written to."""
    aliases = (result.alias_info for result in func._schema.returns)
    return any(alias is not None and not alias.is_write for alias in aliases)


def _asking_package(frame: FrameType | None) -> str | None:
    while frame is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package in _PACKAGES:
            return str(package)
        frame = frame.f_back
    return None
